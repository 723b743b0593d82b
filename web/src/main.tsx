import { render } from 'preact';
import { askEarly } from './api/early';
import { App } from './app';
import { setPainter, workerPainter } from './heat/painter';
import { logInByLink, watchForLinks } from './parts/log_in';
import { parseRoute } from './route';
import './style.css';
import { curvesOf } from './views/curves';
import { comparisonOf } from './views/question';

setPainter(workerPainter(() => new Worker(new URL('./heat/worker.ts', import.meta.url), { type: 'module' })));
const place = document.getElementById('app');
watchForLinks();

/** The questions of the views that take longest. */
function askFirst() {
  const route = parseRoute(location.search);
  if (route.view === 'compare' && route.a !== '' && route.b !== '') askEarly('/api/v1/diff', comparisonOf(route));
  if (route.view !== 'tensor' || route.a === '' || route.tensor === '') return;
  for (const run of route.b === '' ? [route.a] : [route.a, route.b]) askEarly('/api/v1/curves', curvesOf(route, run));
}

void logInByLink().then(() => {
  askFirst();
  if (place) render(<App />, place);
});
