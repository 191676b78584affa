"""k-means clustering of a picture's colours."""
