"""From cost model to schedule: one planner a module behind one protocol."""
