"""Results, claims, figures and the HTML page."""
