// The verdict: which tensor of which step, the setting that explains it, and why there; then what statctl diff prints, word for word.
import type { ComponentChildren } from 'preact';
import { numberOf } from '../api/client';
import type { Cause, DiffReport, Divergence } from '../api/types';
import { Comparable } from '../parts/comparable';
import { count, short, shown, words } from '../text';

export const TONES: Record<string, string> = {
  IDENTICAL: 'good',
  EQUAL: 'good',
  'SAME UP TO ROUNDING': 'good',
  'WITHIN TOLERANCE': 'good',
  DIVERGED: 'bad',
  INCOMPARABLE: 'warn',
};

export const SIGNS: Record<string, string> = { good: '=', bad: '≠', warn: '?' };

/** Where the runs begin to differ: what the verdict is about; null: they do not, or it is not known where. */
export function originOf(report: DiffReport): Divergence | null {
  return (report.root as unknown as Divergence | null) ?? (report.verdict === 'diverged' ? report.first : null);
}

/** The line through every chart of steps. */
export function originMark(report: DiffReport): { x: number; text: string } | null {
  const at = report.text?.verdict === 'DIVERGED' ? originOf(report) : null;
  return at ? markOf(at.step) : null;
}

export const markOf = (step: number) => ({ x: step, text: `step ${step}, the origin` });

/** "blocks.1.ln2": the tensor, with its place in a nested output. */
export function tensorText(at: Pick<Divergence, 'activation' | 'output_path'>): string {
  const path = at.output_path === '' || at.output_path === '0' ? '' : `[${at.output_path}]`;
  return shown(at.activation, 120) + shown(path, 40);
}

/** "6,658 × tolerance"; with twins or repeats, how many times their noise. */
function sizeText(at: Divergence): string {
  const times = (value: number) => (value >= 100 ? count(Math.round(value)) : short(value, 2));
  const noise = numberOf(at.times_noise);
  if (noise !== null && Number.isFinite(noise)) return `${times(noise)} × noise`;
  const distance = numberOf(at.distance);
  const tolerance = numberOf(at.tolerance);
  if (distance === null || !Number.isFinite(distance)) return '';
  return tolerance !== null && tolerance > 0 ? `${times(distance / tolerance)} × tolerance` : `distance ${short(distance)}`;
}

// The kind that goes without saying in a stage.
const USUAL: Record<string, string> = { forward: 'output', backward: 'grad_output', grad: 'weight_grad', weights: 'weight', optimizer: 'weight', batch: 'batch' };

/** What one wants to know of the place at a glance. */
export function chipsOf(report: DiffReport): string[] {
  const at = originOf(report);
  if (!at) return [];
  const ranks = at.ranks_a.length > 0 ? at.ranks_a : [at.rank];
  return [
    words(at.stage),
    at.kind && USUAL[at.stage ?? ''] !== at.kind ? words(at.kind) : '',
    at.mode && at.mode !== 'train' ? at.mode : '',
    ranks.length > 8 ? `${ranks.length} ranks` : `${ranks.length > 1 ? 'ranks' : 'rank'} ${ranks.join(', ')}`,
    at.micro_batch > 0 ? `micro-batch ${at.micro_batch}` : '',
    at.call > 0 ? `call ${at.call}` : '',
    ['distance', 'bitwise'].includes(at.reason ?? '') || at.distance !== null ? sizeText(at) : words(at.reason),
    report.root?.confidence ?? '',
  ].filter(Boolean);
}

/** "eps: 1e-05 → 0.001"; null: the cause is no setting with two values. */
function settingOf(cause: Cause): { key: string; a: string; b: string } | null {
  return cause.key !== '' && (cause.a !== '' || cause.b !== '') ? cause : null;
}

function Setting({ cause }: { cause: Cause }) {
  const setting = settingOf(cause);
  if (!setting) return null;
  const side = (value: string) => (value === '' ? <span class="soft">not set</span> : <bdi>{shown(value, 200)}</bdi>);
  return (
    <p class="setting">
      <bdi class="name">{shown(setting.key, 200)}</bdi>: {side(setting.a)} <span aria-label="in the second run">→</span> {side(setting.b)}
    </p>
  );
}

/** `children`: what can be done with the verdict. `zoom`: what is known of the inside of the module. */
export function Verdict({ report, children, zoom }: { report: DiffReport; children?: ComponentChildren; zoom?: ComponentChildren }) {
  const text = report.text;
  if (!text) return null;
  const tone = TONES[text.verdict] ?? 'warn';
  const compared = report.compared;
  const at = originOf(report);
  const causes = report.root ? (report.root.causes.length > 0 ? report.root.causes : report.root.cause ? [report.root.cause] : []) : [];
  // The cause is the sentence's last part and begins as statctl writes it: it belongs to the setting, not to the place.
  const cut = causes.length > 0 ? text.sentence.lastIndexOf(' Cause') : -1;
  const where = cut < 0 ? text.sentence : text.sentence.slice(0, cut);
  const cause = cut < 0 ? '' : text.sentence.slice(cut + 1);
  const chips = chipsOf(report);
  const because = report.root?.because ?? [];
  return (
    <section class={`verdict ${tone}`} aria-label="Verdict">
      <div class="verdict-head">
        <p class="badge">
          <span aria-hidden="true">{SIGNS[tone]} </span>
          {text.verdict.toLowerCase()}
        </p>
        {children}
      </div>
      <Comparable checks={report.comparable} />
      {at ? (
        <h2 class="headline">
          Step {at.step} <span aria-hidden="true">·</span> <bdi class="name">{tensorText(at)}</bdi>
        </h2>
      ) : null}
      {causes.map((one) => (
        <Setting key={one.rule + one.key} cause={one} />
      ))}
      {cause ? <p class="cause">{shown(cause, 4000)}</p> : null}
      {chips.length > 0 ? (
        <ul class="chips" aria-label="In short">
          {chips.map((chip) => (
            <li key={chip}>{shown(chip, 80)}</li>
          ))}
        </ul>
      ) : null}
      {because.length > 0 && report.root ? (
        <>
          <h3>Why there</h3>
          <ul class="because">
            {because.map((one) => (
              <li key={one}>{shown(one, 2000)}</li>
            ))}
          </ul>
        </>
      ) : null}
      {at ? <p class="sentence">{capital(shown(where, 4000))}</p> : <h2 class="sentence">{capital(shown(where, 4000))}</h2>}
      {text.next ? <p class="next">Next: {shown(text.next, 4000)}</p> : null}
      {zoom}
      {compared ? (
        <p class="counts">
          {count(compared.records)} records compared: {count(compared.identical)} identical, {count(compared.within_tolerance)} within tolerance, {count(compared.diverged)} {tone === 'good' && compared.diverged > 0 ? 'beyond it' : 'diverged'}
        </p>
      ) : null}
    </section>
  );
}

function capital(sentence: string): string {
  return sentence.startsWith('at ') || sentence.startsWith('(possible)') ? sentence.charAt(0).toUpperCase() + sentence.slice(1) : sentence;
}

/** What else the comparison has to say, below the picture. */
export function Remarks({ report }: { report: DiffReport }) {
  const routers = report.routers.filter((one) => one.finding !== 'same').map((one) => one.text);
  const remarks = [...routers, ...report.notes];
  if (remarks.length === 0) return null;
  return (
    <details open={report.text?.verdict === 'INCOMPARABLE'}>
      <summary>
        {remarks.length} remark{remarks.length === 1 ? '' : 's'}
      </summary>
      <ul>
        {remarks.map((one) => (
          <li key={one}>{shown(one, 2000)}</li>
        ))}
      </ul>
    </details>
  );
}
