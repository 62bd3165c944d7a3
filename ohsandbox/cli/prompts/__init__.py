"""Questions to the person at the terminal: yes or no, a line, a choice, an approval; and the answers that are kept."""
