// Of a tensor, which rank, micro-batch and call is shown: a choice for each of them that there are several of.
import type { CurvePlace } from '../api/types';
import { Choice } from '../parts/parts';
import { placeKey } from './places';

const PARTS = [
  ['rank', 'Rank', 'rank'],
  ['micro_batch', 'Micro-batch', 'micro-batch'],
  ['call', 'Call', 'call'],
] as const;
type Part = (typeof PARTS)[number][0];
type Place = Pick<CurvePlace, Part>;

export function parsePlace(place: string): Place {
  const [rank = 0, micro_batch = 0, call = 0] = place.split('/').map(Number);
  return { rank, micro_batch, call };
}

/** The place that has this value and otherwise is most like the present one. */
export function nearest(places: readonly Place[], now: Place, part: Part, value: number): Place {
  const wanted = { ...now, [part]: value };
  const shared = (one: Place) => PARTS.reduce((sum, [name]) => sum + (one[name] === wanted[name] ? (name === part ? 10 : 1) : 0), 0);
  return places.reduce((best, one) => (shared(one) > shared(best) ? one : best), places[0] ?? wanted);
}

export function PlaceChoice({ places, value, onChange }: { places: readonly Place[]; value: string; onChange: (place: string) => void }) {
  const now = parsePlace(value);
  return (
    <>
      {PARTS.map(([part, label, word]) => {
        const values = [...new Set(places.map((place) => place[part]))].sort((p, q) => p - q);
        if (values.length < 2 && (values.length === 0 || values[0] === now[part])) return null;
        const all = values.includes(now[part]) ? values : [now[part], ...values];
        return <Choice key={part} label={label} value={String(now[part])} options={all.map((one) => [String(one), `${word} ${one}`] as const)} onChange={(chosen) => onChange(placeKey(nearest(places, now, part, Number(chosen))))} />;
      })}
    </>
  );
}
