"""The leaderboard: tables, figure, page and submissions."""
