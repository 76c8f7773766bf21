"""Reports: finished runs as one page, pictures and a page of Markdown. They show rows and measure nothing."""
