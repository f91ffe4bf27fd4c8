"""Text lines: images and their texts, as users or IAM bring them."""
