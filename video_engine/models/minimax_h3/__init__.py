"""MiniMax-H3: picture and prompt to video with sound, one packed sequence, no guidance."""
