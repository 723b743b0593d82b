// Every view is a URL: /?view=compare&a=base&b=ort&rank=0.
import { useEffect, useState } from 'preact/hooks';

export const VIEWS = ['runs', 'run', 'compare', 'tensor', 'config', 'ranks', 'memory', 'tokens', 'collector'] as const;
export type View = (typeof VIEWS)[number];

export interface Route {
  view: View;
  a: string;
  b: string;
  rank: string; // "" or a number
  stage: string; // of the heat map's rows
  only: string; // their kind
  kind: string; // of the tensor
  tensor: string;
  tensor_b: string; // its name in run B, if different
  path: string; // place in a nested output
  mode: string;
  step: string;
  place: string; // of the tensor: "RANK/MICRO_BATCH/CALL"
  place_b: string; // in run B, if different
  sequence: string; // of tokens: the key of one of them
  origin: string; // the step at which the runs begin to differ
  stat: string;
  scale: string; // of the map of a run: "absolute", or relative to each tensor's median
  sort: string;
  filter: string;
  window: string; // of the heat map: "FIRST_STEP-LAST_STEP:FIRST_ROW-LAST_ROW"
  open: string; // groups of the heat map's rows that are unfolded: "all", "none", or their numbers
  // How the runs are compared, as in a DiffRequest; lists with commas (views/question.ts).
  tolerance: string;
  ranks: string;
  steps: string;
  kinds: string;
  noise: string;
  map: string;
  exact: string;
  no_alignment: string;
  first_only: string;
  no_noise: string;
  merge_ranks: string;
  logical: string;
  by_rank: string;
}

const EMPTY: Route = {
  view: 'runs', a: '', b: '', rank: '', stage: '', only: '', kind: '', tensor: '', tensor_b: '', path: '', mode: '', step: '', place: '', place_b: '', sequence: '', origin: '', stat: '', scale: '', sort: '', filter: '', window: '', open: '',
  tolerance: '', ranks: '', steps: '', kinds: '', noise: '', map: '', exact: '', no_alignment: '', first_only: '', no_noise: '', merge_ranks: '', logical: '', by_rank: '',
}; // prettier-ignore

export function parseRoute(search: string): Route {
  const route: Route = { ...EMPTY };
  const given = new URLSearchParams(search);
  for (const name of Object.keys(EMPTY) as (keyof Route)[]) {
    const value = given.get(name);
    if (value === null || name === 'view') continue;
    route[name] = value;
  }
  const view = given.get('view') as View;
  route.view = VIEWS.includes(view) ? view : 'runs';
  if (!/^\d*$/.test(route.rank)) route.rank = '';
  if (!/^\d*$/.test(route.step)) route.step = '';
  for (const place of ['place', 'place_b'] as const) if (!/^\d+\/\d+\/\d+$/.test(route[place])) route[place] = '';
  if (!/^\d*$/.test(route.origin)) route.origin = '';
  return route;
}

export function hrefOf(route: Partial<Route>): string {
  const parts: string[] = [];
  for (const name of Object.keys(EMPTY) as (keyof Route)[]) {
    const value = route[name];
    if (!value || (name === 'view' && value === 'runs')) continue;
    parts.push(`${name}=${encodeURIComponent(value)}`);
  }
  return parts.length === 0 ? '/' : `/?${parts.join('&')}`;
}

const MOVED = 'statcollect:moved';

/** Goes to a view. `replace`: without a new entry for the back button. */
export function go(route: Partial<Route>, replace = false) {
  const href = hrefOf(route);
  if (href === location.pathname + location.search) return;
  if (replace) history.replaceState(null, '', href);
  else history.pushState(null, '', href);
  window.dispatchEvent(new Event(MOVED));
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parseRoute(location.search));
  useEffect(() => {
    const moved = () => setRoute(parseRoute(location.search));
    window.addEventListener('popstate', moved);
    window.addEventListener(MOVED, moved);
    return () => {
      window.removeEventListener('popstate', moved);
      window.removeEventListener(MOVED, moved);
    };
  }, []);
  return route;
}

/** For the onClick of a link within the page; lets the browser open new tabs as ever. */
export function follow(event: MouseEvent, route: Partial<Route>) {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(route);
}
