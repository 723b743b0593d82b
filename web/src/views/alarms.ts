// What the collector's rules say of a run (docs/alarms.md): alarms, that one is over, and notes.
import type { EventRow } from '../api/types';
import { count, words } from '../text';

/** From a rule: an alarm, the end of one, or a note. What a program logs is not, whatever its fields. */
export function isFromRule(event: EventRow): boolean {
  return event.origin === 'collector' && event.fields['severity'] !== undefined;
}

/** What is counted: neither an alarm's end nor a note. */
export function isAlarm(event: EventRow): boolean {
  return isFromRule(event) && event.fields['severity'] === 'alarm';
}

/** The rule, and that its alarm is over; of a note its own name. */
export function ruleText(event: EventRow): string {
  if (event.fields['severity'] === 'cleared') return `${words(event.fields['rule'] ?? '')} (over)`;
  return words(event.kind);
}

/** "2 alarms", "1 alarm", "No alarms". */
export function alarmsText(alarms: number): string {
  if (alarms === 0) return 'No alarms';
  return alarms === 1 ? '1 alarm' : `${count(alarms)} alarms`;
}
