"""HTML pages that hold all they need: one frame, templates that escape whatever they are given, pictures."""
