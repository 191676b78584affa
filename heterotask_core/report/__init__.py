"""What happened, for people: summary, Gantt chart, Perfetto trace."""
