import { expect, test } from 'vitest';
import type { EventRow } from '../src/api/types';
import { alarmsText, isAlarm, isFromRule, ruleText } from '../src/views/alarms';

const event = (kind: string, fields: Record<string, string>, origin = 'collector'): EventRow => ({ run: 'r', rank: 0, step: 1, kind, text: 't', unix_nanos: 0, fields, origin, attempt: 1 });
const raised = event('loss_spike', { severity: 'alarm', rule: 'loss_spike' });
const over = event('alarm_cleared', { severity: 'cleared', rule: 'loss_spike' });
const overflow = event('overflow', { severity: 'note', rule: 'nan_first_seen' });
const logged = event('restart', { severity: 'alarm' }, 'agent');
const setting = event('setting_changed', {});

test('an alarm is counted once, also when it is over, and notes are not', () => {
  const all = [raised, over, overflow, logged, setting];
  expect(all.filter(isAlarm)).toEqual([raised]);
  expect(all.filter(isFromRule)).toEqual([raised, over, overflow]);
  expect([0, 1, 1234].map(alarmsText)).toEqual(['No alarms', '1 alarm', '1,234 alarms']);
});

test('what a rule says has its name, and a note its own', () => {
  expect([raised, over, overflow].map(ruleText)).toEqual(['loss spike', 'loss spike (over)', 'overflow']);
});
