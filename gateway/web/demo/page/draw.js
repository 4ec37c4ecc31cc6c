/* Draw at most once a frame, however many records come. */
const pendingDraws = new Set();

export function scheduleDraw(draw) {
  if (!pendingDraws.size) requestAnimationFrame(drawPending);
  pendingDraws.add(draw);
}

function drawPending() {
  const draws = [...pendingDraws];
  pendingDraws.clear();
  draws.forEach((draw) => draw());
}
