"""Do the papers' theorems hold? Every statement, put to the test."""
