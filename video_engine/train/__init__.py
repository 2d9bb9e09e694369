"""Training of motion-small from analytic motion over freely licensed and procedural pictures."""
