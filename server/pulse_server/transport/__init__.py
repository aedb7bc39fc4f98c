"""HTTP itself: connections, limits and bodies on the way in; answers, problem documents and URLs on the way out."""
