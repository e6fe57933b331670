"""attnspec: the executable standard for multi-head attention."""
