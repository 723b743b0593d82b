// Whether a comparison is valid: what is not as it should be, one line each, and behind one line all that is.
import type { PremiseCheck } from '../api/types';
import { shown } from '../text';

export function Comparable({ checks }: { checks: readonly PremiseCheck[] }) {
  const holding = checks.filter((check) => check.ok);
  const broken = checks.filter((check) => !check.ok);
  if (checks.length === 0) return null;
  return (
    <div class="premises">
      {broken.length > 0 ? (
        <ul aria-label="What makes the comparison less than valid">
          {broken.map(({ check, detail }) => (
            <li key={check + detail}>
              <b>{check}</b> {shown(detail, 2000)}
            </li>
          ))}
        </ul>
      ) : null}
      {holding.length > 0 ? (
        <details>
          <summary>Comparable in {holding.map(({ check }) => check).join(', ')}</summary>
          <ul>
            {holding.map(({ check, detail }) => (
              <li key={check}>
                <b>{check}</b> {shown(detail, 2000)}
              </li>
            ))}
          </ul>
        </details>
      ) : null}
    </div>
  );
}
