// Of a tensor's ranks, micro-batches and calls, which one a view shows: a cell of the heat map stands for all of them.
import type { CurvePlace, DiffReport, Divergence, HeatMapRow, SeriesPoint } from '../api/types';

type Place = Pick<CurvePlace, 'rank' | 'micro_batch' | 'call'>;

/** "RANK/MICRO_BATCH/CALL": in the URL, and in /api/v1/curves. */
export const placeKey = (place: Place) => `${place.rank}/${place.micro_batch}/${place.call}`;

/** Where a difference was found, in each run. A tensor that was put together from several ranks is listed under the first of them. */
export function placesOf(at: Divergence): { a: string; b: string } {
  return {
    a: placeKey({ ...at, rank: at.ranks_a[0] ?? at.rank }),
    b: placeKey({ ...at, rank: at.ranks_b[0] ?? at.rank_b ?? at.rank }),
  };
}

/** The differences that a report lists; the root, which `statctl diff` names, is the first of them. */
function listed(report: DiffReport): readonly Divergence[] {
  return [...(report.root ? [report.root as unknown as Divergence] : []), ...(report.first ? [report.first] : []), ...report.diverged];
}

/** The difference that a report lists for a tensor in these steps: the root if it is there, else the farthest. */
export function foundIn(report: DiffReport, row: HeatMapRow | undefined, first: number, last: number): Divergence | null {
  const here = listed(report).filter((one) => one.activation === row?.activation && one.kind === row.kind && one.output_path === row.output_path && one.mode === row.mode && one.step >= first && one.step <= last);
  if (report.root && here[0] === (report.root as unknown as Divergence)) return here[0];
  const distance = (one: Divergence) => (one.distance === null || one.distance === 'NaN' ? Infinity : Number(one.distance));
  return here.reduce<Divergence | null>((most, one) => (most === null || distance(one) > distance(most) ? one : most), null);
}

/** Whether ranks were compared one by one: a tensor that is split over ranks is then shown in parts, too. */
export function comparesParts(report: DiffReport): boolean {
  const all = listed(report);
  return all.length > 0 && all.every((one) => one.ranks_a.length === 0);
}

/** The first place at which both runs have values that differ, else the first with data. */
export function firstPlace(a: readonly SeriesPoint[], b: readonly SeriesPoint[]): string {
  const inB = new Map(b.map((point) => [placeKey(point), point]));
  const differs = a.find((point) => {
    const other = inB.get(placeKey(point));
    return other !== undefined && JSON.stringify(other.stats) !== JSON.stringify(point.stats);
  });
  const first = differs ?? a[0] ?? b[0];
  return first ? placeKey(first) : '';
}

/** The point at a place. `others`: where the runs have different ranks, else that at the same micro-batch and call. */
export function pointAt<T extends Place>(points: readonly T[], place: string, others = false): T | null {
  const within = (key: string) => key.slice(key.indexOf('/'));
  const there = points.find((point) => placeKey(point) === place);
  return there ?? (others ? points.find((point) => within(placeKey(point)) === within(place)) : undefined) ?? null;
}

/**
 * The rows of both runs at one place: the wanted one, else the first that both have, else the first of all. `wantedB`: the place in B, if it is
 * another one.
 */
export function pairAt<T extends Place>(a: readonly T[], b: readonly T[], wanted: string, wantedB = ''): [T | null, T | null] {
  if (wantedB !== '' && pointAt(a, wanted) && pointAt(b, wantedB)) return [pointAt(a, wanted), pointAt(b, wantedB)];
  const keysA = a.map(placeKey);
  const keysB = b.map(placeKey);
  const place = [wanted, ...keysA.filter((key) => keysB.includes(key))].find((key) => keysA.includes(key) || keysB.includes(key)) ?? keysA[0] ?? keysB[0] ?? '';
  return [pointAt(a, place), pointAt(b, place)];
}
