"""Access to a server: a secret of one's own in a file of mode 600, and nobody's own settings touched."""

import stat
import tomllib

import pytest

from flows import access
from flows.access import DeployError, ensure_access


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def _stored(home):
    return tomllib.loads((home / "profiles.toml").read_text())


def test_a_newcomer_gets_a_private_profile_that_is_kept(home):
    assert ensure_access(host="127.0.0.1", port=4200)
    first = _stored(home)
    assert first["active"] == "heterotask"
    made = first["profiles"]["heterotask"]
    auth = made["PREFECT_SERVER_API_AUTH_STRING"]
    assert made == access.server_settings("127.0.0.1", 4200, auth)
    assert made["PREFECT_API_URL"] == "http://127.0.0.1:4200/api"
    assert len(auth) > 32
    assert stat.S_IMODE((home / "profiles.toml").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert [path.name for path in home.iterdir()] == ["profiles.toml"]
    assert ensure_access(host="127.0.0.1", port=4300)
    assert _stored(home)["profiles"]["heterotask"] == access.server_settings("127.0.0.1", 4300, auth)


def test_two_newcomers_get_different_secrets(home, tmp_path, monkeypatch):
    ensure_access(host="127.0.0.1", port=4200)
    first = _stored(home)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "other"))
    ensure_access(host="127.0.0.1", port=4200)
    assert _stored(tmp_path / "other") != first


def test_a_server_in_the_environment_is_used(home, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://elsewhere/api")
    assert not ensure_access(host="127.0.0.1", port=4200)
    assert not home.exists()


def test_a_server_of_the_active_profile_is_used(home):
    home.mkdir()
    text = 'active = "mine"\n\n[profiles.mine]\nPREFECT_API_URL = "http://elsewhere/api"\n'
    (home / "profiles.toml").write_text(text)
    assert not ensure_access(host="127.0.0.1", port=4200)
    assert (home / "profiles.toml").read_text() == text


def test_other_profiles_stay(home):
    home.mkdir()
    (home / "profiles.toml").write_text('active = "local"\n\n[profiles.local]\nPREFECT_LOGGING_LEVEL = "DEBUG"\n')
    assert ensure_access(host="0.0.0.0", port=4200)
    stored = _stored(home)
    assert stored["active"] == "heterotask"
    assert stored["profiles"]["local"] == {"PREFECT_LOGGING_LEVEL": "DEBUG"}
    assert stored["profiles"]["heterotask"]["PREFECT_API_URL"] == "http://127.0.0.1:4200/api"


def test_a_damaged_file_is_named(home):
    home.mkdir()
    (home / "profiles.toml").write_text("active = ")
    with pytest.raises(DeployError, match=r"profiles\.toml cannot be read"):
        ensure_access(host="127.0.0.1", port=4200)
