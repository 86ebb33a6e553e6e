"""The pictures: functions that return a `matplotlib.figure.Figure` and never show it."""
