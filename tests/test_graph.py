"""Task graphs: versions, inferred dependencies, fingerprints, and what is refused."""

import dataclasses

import pytest

from heterotask_core.errors import GraphError, KernelError
from heterotask_core.graph import TaskGraph, class_key
from heterotask_core.kernel import Kernel, OutputPath, Variant

CPU = Variant("numpy", "cpu", "numpy:copyto")
MAKE = Kernel("make", __name__, writes=("dst",), variants=(CPU,), free_params=("row",))
ADD = Kernel("add", __name__, reads=("a", "b"), writes=("dst",), variants=(CPU,))
BUMP = Kernel("bump", __name__, updates=("x",), variants=(CPU,))
JOIN = Kernel("join", __name__, reads=("parts",), writes=("dst",), variants=(CPU,))


@pytest.mark.parametrize(
    "options",
    [
        {"device_kind": "cpu", "blocking": True},
        {"device_kind": "opencl", "blocking": False},
        {"device_kind": "opencl", "blocking": True, "source": "kernels:a.cl"},
    ],
)
def test_on_host_is_for_blocking_device_variants_without_source(options):
    variant = Variant("host", implementation="numpy:copyto", on_host=True, **options)
    with pytest.raises(KernelError, match="on_host"):
        Kernel("io", __name__, reads=("a",), variants=(variant,))


def test_access_of_a_role():
    kernel = Kernel("mix", __name__, reads=("a",), writes=("b",), updates=("c",))
    assert [kernel.access(role) for role in "abc"] == ["read", "write", "update"]


def chain() -> tuple[TaskGraph, list]:
    g = TaskGraph("chain")
    a, b, c = (g.data(n, shape=(4,), dtype="float32") for n in "abc")
    tasks = [
        g.add(MAKE, writes={"dst": a}),
        g.add(MAKE, writes={"dst": b}),
        g.add(ADD, reads={"a": a, "b": b}, writes={"dst": c}),
        g.add(BUMP, updates={"x": a}),
        g.add(BUMP, updates={"x": a}),
    ]
    return g, tasks


def test_dependencies_follow_from_versions():
    g, tasks = chain()
    assert [sorted(g.predecessors(t)) for t in tasks] == [[], [], [0, 1], [0], [3]]
    assert [(v.item.name, v.number) for v in g.versions] == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("a", 3)]
    assert [v.number for v in tasks[4].inputs] == [2]
    assert tasks[2].arguments[0].item.size_bytes == 16


def test_older_version_stays_valid_for_its_readers():
    _, tasks = chain()
    assert [v.number for v in tasks[2].inputs] == [1, 1]


def test_list_role_keeps_positions():
    g = TaskGraph("lists")
    parts = [g.data(f"p{i}", shape=(i + 1,), dtype="uint8") for i in range(3)]
    for p in parts:
        g.add(MAKE, writes={"dst": p})
    t = g.add(JOIN, reads={"parts": parts}, writes={"dst": g.data("all", shape=(6,), dtype="uint8")})
    assert [(a.role, a.position, a.is_list) for a in t.arguments] == [
        ("parts", 0, True),
        ("parts", 1, True),
        ("parts", 2, True),
        ("dst", 0, False),
    ]
    assert t.shapes() == {"parts": (1,), "dst": (6,)}


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda g, a: g.data("a", shape=(1,), dtype="uint8"), "declared twice"),
        (lambda g, a: g.data("z", shape=(-1,), dtype="uint8"), "negative extent"),
        (lambda g, a: g.add(BUMP, updates={"x": a}), "before any task has written"),
        (lambda g, a: g.add(BUMP, updates={"y": a}), "roles"),
        (lambda g, a: g.add(ADD, reads={"a": a, "b": a}, writes={"dst": a}), "before any task"),
        (lambda g, a: g.add(MAKE, writes={"dst": a}, params={"f": object()}), "not a JSON value"),
        (lambda g, a: g.add(MAKE, writes={"dst": TaskGraph("o").data("a", shape=(1,), dtype="u1")}), "another graph"),
    ],
)
def test_refused_with_the_name(act, message):
    g = TaskGraph("bad")
    a = g.data("a", shape=(4,), dtype="float32")
    with pytest.raises(GraphError, match=message):
        act(g, a)


def test_item_bound_to_two_roles_is_refused():
    g, _ = chain()
    a = g.items[0]
    with pytest.raises(GraphError, match="bound to two roles"):
        g.add(ADD, reads={"a": a, "b": a}, writes={"dst": g.items[2]})


def test_class_key_ignores_position_and_output():
    g = TaskGraph("classes")
    items = [g.data(f"x{i}", shape=(4,), dtype="float32") for i in range(4)]
    t = [g.add(MAKE, writes={"dst": items[i]}, params={"row": i, "file": OutputPath(f"f{i}")}) for i in range(2)]
    other = g.add(MAKE, writes={"dst": items[2]}, params={"row": 0, "sigma": 2.0})
    assert class_key(t[0]) == class_key(t[1]) != class_key(other)


def test_fingerprint_changes_with_every_part():
    def build(name="g", shape=(4,), sigma=1.0, kernel=MAKE):
        g = TaskGraph(name)
        g.add(kernel, writes={"dst": g.data("a", shape=shape, dtype="float32")}, params={"sigma": sigma})
        return g.fingerprint()

    renamed = dataclasses.replace(MAKE, variants=(dataclasses.replace(CPU, name="other"),))
    prints = [build(), build(name="h"), build(shape=(5,)), build(sigma=2.0), build(kernel=renamed)]
    assert len(set(prints)) == 5
    assert build() == prints[0]


def test_kernel_refuses_double_roles_and_variants():
    with pytest.raises(KernelError, match="two lists"):
        Kernel("k", __name__, reads=("x",), writes=("x",))
    with pytest.raises(KernelError, match="one name"):
        Kernel("k", __name__, variants=(CPU, CPU))
    with pytest.raises(KernelError, match="device kind"):
        Kernel("k", __name__, variants=(Variant("v", "tpu", "a:b"),))
