"""What the console computes, without clock, file or network."""
