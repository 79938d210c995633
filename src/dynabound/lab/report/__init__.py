"""What came out: results, claims, figures and the HTML page."""
