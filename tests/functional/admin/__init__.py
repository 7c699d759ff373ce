"""The admin API and the dashboard."""
