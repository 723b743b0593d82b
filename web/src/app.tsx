// The frame of the page: the views, and whether the collector answers.
import { useEffect, useRef } from 'preact/hooks';
import { useOffline } from './api/use_query';
import { LogOut } from './parts/log_in';
import { Link } from './parts/parts';
import { useRoute, type Route, type View } from './route';
import { shown } from './text';
import { CollectorView } from './views/collector';
import { CompareView } from './views/compare';
import { ConfigView } from './views/config';
import { MemoryView } from './views/memory';
import { RanksView } from './views/ranks';
import { RunView } from './views/run';
import { RunsView } from './views/runs';
import { TensorView } from './views/tensor';
import { TokensView } from './views/tokens';

function viewOf(route: Route) {
  switch (route.view) {
    case 'run':
      return <RunView route={route} />;
    case 'compare':
      return <CompareView route={route} />;
    case 'tensor':
      return <TensorView route={route} />;
    case 'config':
      return <ConfigView route={route} />;
    case 'ranks':
      return <RanksView route={route} />;
    case 'memory':
      return <MemoryView route={route} />;
    case 'tokens':
      return <TokensView route={route} />;
    case 'collector':
      return <CollectorView />;
    default:
      return <RunsView route={route} />;
  }
}

function titleOf(route: Route): string {
  const runs = [route.a, route.b].filter(Boolean).map((run) => shown(run, 40)).join(' / ');
  const view = route.view === 'runs' ? '' : `${route.view} `;
  return view || runs ? `${view}${runs} – statcollect` : 'statcollect';
}

const PLACES: readonly (readonly [View, string])[] = [
  ['runs', 'Runs'],
  ['compare', 'Compare'],
  ['collector', 'Collector'],
];

/** The place that a view belongs to: what is about one run is below the runs. */
function placeOf(route: Route): View {
  if (route.view === 'collector' || route.view === 'compare') return route.view;
  if (route.view === 'tokens') return 'compare';
  return route.b !== '' && (route.view === 'tensor' || route.view === 'config') ? 'compare' : 'runs';
}

export function App() {
  const route = useRoute();
  const offline = useOffline();
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  useEffect(() => {
    document.title = titleOf(route);
  }, [route]);
  useEffect(() => {
    // A new view begins at its top, for the keyboard, too.
    if (!first.current) {
      main.current?.focus({ preventScroll: true });
      window.scrollTo(0, 0);
    }
    first.current = false;
  }, [route.view]);
  return (
    <>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <nav class="top" aria-label="Views">
        <Link to={{ view: 'runs' }}>
          <span class="brand">statcollect</span>
        </Link>
        <div class="places">
          {PLACES.map(([view, text]) => (
            <Link key={view} to={{ view, a: route.a, b: route.b }} current={placeOf(route) === view}>
              {text}
            </Link>
          ))}
        </div>
        <LogOut />
      </nav>
      <div role="status" class="offline-place">
        {offline ? <p class="offline">The collector does not answer. What you see may be out of date. The page reconnects by itself.</p> : null}
      </div>
      <main id="main" ref={main} tabIndex={-1}>
        {viewOf(route)}
      </main>
    </>
  );
}
