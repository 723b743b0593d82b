// How two runs are compared: the options of `statctl diff`, which a link may carry (route.ts), for the collector and for people.
import type { Parameters } from '../api/types';
import type { Route } from '../route';

/** The flags of a diff by their name in the API, as `statctl` calls them, and in words. */
const FLAGS = [
  ['exact', '--exact', 'every differing bit counts'],
  ['no_alignment', '--no-alignment', 'names are not matched'],
  ['first_only', '--first', 'only up to the first diverged step'],
  ['no_noise', '--no-noise', 'saved noise ignored'],
  ['merge_ranks', '--merge-ranks', 'replicas compared'],
  ['logical', '--logical', 'whole models compared'],
  ['by_rank', '--by-rank', 'rank by rank'],
] as const;

const listed = (text: string) => text.split(',').filter(Boolean);
const isSet = (value: string) => value !== '' && value !== 'false' && value !== '0';

type Asked = Parameters<'/api/v1/diff'>;

/** The request. Whatever is not a number or a kind goes to the collector as it is, which says what is wrong with it. */
export function questionOf(route: Route): Asked {
  const asked: Asked = { run_a: route.a, run_b: route.b };
  const ranks = route.rank === '' ? listed(route.ranks) : [route.rank];
  if (ranks.length > 0) asked.ranks = ranks as unknown as number[];
  if (route.tolerance) asked.tolerance = route.tolerance as unknown as number;
  if (route.steps) asked.steps = route.steps;
  if (route.kinds) asked.kinds = listed(route.kinds) as NonNullable<Asked['kinds']>;
  if (route.noise) asked.noise = listed(route.noise);
  if (route.map) asked.map = route.map;
  for (const [name] of FLAGS) if (isSet(route[name])) asked[name] = true;
  return asked;
}

const COLUMNS_MAX = 2048;
const ROWS_MAX = 2048;

/** The same with a heat map: what the comparison asks. */
export const comparisonOf = (route: Route): Asked => ({ ...questionOf(route), heat_map_columns: COLUMNS_MAX, heat_map_rows: ROWS_MAX });

/** A map is the name of a built-in one, or the rules themselves, which a command takes from a file. */
const isRules = (map: string) => map.includes('->');

/** The same question for `statctl diff`. */
export function argumentsOf(route: Route): string[] {
  const words = [route.a, route.b];
  const ranks = route.rank === '' ? route.ranks : route.rank;
  const add = (flag: string, value: string) => void (value === '' || words.push(flag, value));
  add('--tolerance', route.tolerance);
  add('--rank', ranks);
  add('--steps', route.steps);
  add('--kinds', route.kinds);
  add('--noise', route.noise);
  add('--map', isRules(route.map) ? 'map.txt' : route.map);
  for (const [name, flag] of FLAGS) if (isSet(route[name])) words.push(flag);
  return words;
}

/** What differs from the usual question, in words; `rank` is not among it: the page has a choice of its own for it. */
export function optionTexts(route: Route): string[] {
  const texts: string[] = [];
  const add = (value: string, text: string) => void (value === '' || texts.push(text));
  add(route.tolerance, `tolerance ${route.tolerance}`);
  add(route.ranks, `${listed(route.ranks).length === 1 ? 'rank' : 'ranks'} ${route.ranks}`);
  add(route.steps, `steps ${route.steps}`);
  add(route.kinds, `only ${listed(route.kinds).join(', ').replaceAll('_', ' ')}`);
  add(route.noise, `noise of ${listed(route.noise).join(', ')}`);
  add(route.map, isRules(route.map) ? 'names mapped by rules' : `names mapped by ${route.map}`);
  for (const [name, , text] of FLAGS) if (isSet(route[name])) texts.push(text);
  return texts;
}
