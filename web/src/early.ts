// The first script of the page: small, so that the collector is asked while the browser is still reading the rest. index.html has it before
// app.js, which imports it, too.
import { askEarly } from './api/early';
import { hasLink } from './api/token';
import { parseRoute } from './route';
import { curvesOf } from './views/curves';
import { comparisonOf } from './views/question';

/** Asks the questions of the views that take longest. */
export function askFirst(): void {
  const route = parseRoute(location.search);
  if (route.view === 'compare' && route.a !== '' && route.b !== '') askEarly('/api/v1/diff', comparisonOf(route));
  if (route.view !== 'tensor' || route.a === '' || route.tensor === '') return;
  for (const side of route.b === '' ? (['a'] as const) : (['a', 'b'] as const)) askEarly('/api/v1/curves', curvesOf(route, side));
}

// A link that logs in comes first (main.tsx).
if (!hasLink()) askFirst();
