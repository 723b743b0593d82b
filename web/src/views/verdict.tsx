// The verdict: what statctl diff prints first, word for word.
import type { DiffReport } from '../api/types';
import { count, shown } from '../text';

const TONES: Record<string, string> = {
  IDENTICAL: 'good',
  EQUAL: 'good',
  'SAME UP TO ROUNDING': 'good',
  'WITHIN TOLERANCE': 'good',
  DIVERGED: 'bad',
  INCOMPARABLE: 'warn',
};

const SIGNS: Record<string, string> = { good: '=', bad: '≠', warn: '?' };

export function Verdict({ report }: { report: DiffReport }) {
  const text = report.text;
  if (!text) return null;
  const tone = TONES[text.verdict] ?? 'warn';
  const compared = report.compared;
  // The cause is the sentence's last part and begins as statctl writes it: on a line of its own it reads better.
  const at = report.root?.cause ? text.sentence.lastIndexOf(' Cause') : -1;
  const where = at < 0 ? text.sentence : text.sentence.slice(0, at);
  const cause = at < 0 ? '' : text.sentence.slice(at + 1);
  return (
    <section class={`verdict ${tone}`} aria-label="Verdict">
      <p class="badge">
        <span aria-hidden="true">{SIGNS[tone]} </span>
        {text.verdict.toLowerCase()}
      </p>
      <h1 class="sentence">{capital(shown(where, 4000))}</h1>
      {cause ? <p class="cause">{shown(cause, 4000)}</p> : null}
      {text.next ? <p class="next">Next: {shown(text.next, 4000)}</p> : null}
      {compared ? (
        <p class="counts">
          {count(compared.records)} records compared: {count(compared.identical)} identical, {count(compared.within_tolerance)} within tolerance, {count(compared.diverged)} {tone === 'good' && compared.diverged > 0 ? 'beyond it' : 'diverged'}
          {report.steps ? `; steps ${report.steps.first} to ${report.steps.last}` : ''}
          {report.ranks.length > 0 ? `; ${report.ranks.length} rank${report.ranks.length === 1 ? '' : 's'}` : ''}
        </p>
      ) : null}
    </section>
  );
}

function capital(sentence: string): string {
  return sentence.startsWith('at ') || sentence.startsWith('(possible)') ? sentence.charAt(0).toUpperCase() + sentence.slice(1) : sentence;
}

export function Reasons({ report }: { report: DiffReport }) {
  const because = report.root?.because ?? [];
  if (because.length === 0 && report.notes.length === 0) return null;
  return (
    <div class="reasons">
      {because.length > 0 && report.root ? (
        <section>
          <h2>Why there ({report.root.confidence})</h2>
          <ul>
            {because.map((one) => (
              <li key={one}>{shown(one, 2000)}</li>
            ))}
          </ul>
        </section>
      ) : null}
      {report.notes.length > 0 ? (
        <details open={report.text?.verdict === 'INCOMPARABLE'}>
          <summary>
            {report.notes.length} remark{report.notes.length === 1 ? '' : 's'}
          </summary>
          <ul>
            {report.notes.map((one) => (
              <li key={one}>{shown(one, 2000)}</li>
            ))}
          </ul>
        </details>
      ) : null}
    </div>
  );
}
