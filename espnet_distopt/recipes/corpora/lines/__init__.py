"""Reads text lines, which are images with texts, from IAM and from users."""
