// Short names for the types that are generated from the collector's OpenAPI document.
import type { components, paths } from './schema';

type Schemas = components['schemas'];
export type DiffReport = Schemas['DiffReport'];
export type Cause = Schemas['Cause'];
export type Divergence = Schemas['Divergence'];
export type PremiseCheck = Schemas['PremiseCheck'];
export type Tokens = Schemas['GetTokensResponse'];
export type TokenTap = Schemas['TokenTap'];
export type HeatMap = Schemas['HeatMap'];
export type HeatMapRow = Schemas['HeatMapRow'];
export type RunSummary = Schemas['RunSummary'];
export type RunLoss = Schemas['RunLoss'];
export type LiveMessage = Schemas['FollowRunsResponse'];
export type ExponentRow = Schemas['ExponentRow'];
export type CaptureRow = Schemas['CaptureRow'];
export type SeriesPoint = Schemas['SeriesPoint'];
export type Curves = Schemas['GetCurvesResponse'];
export type CurvePlace = Schemas['CurvePlace'];
export type StatMap = Schemas['GetStatMapResponse'];
export type EventRow = Schemas['EventRow'];
export type MemoryRow = Schemas['MemoryRow'];
export type DensityRow = Schemas['DensityRow'];
export type Side = Schemas['ObservationSide'];
export type ScalarPoint = Schemas['ListScalarsResponse']['records'][number];
export type ConfigReport = Schemas['ConfigReport'];
export type ConfigItem = ConfigReport['items'][number];
export type ZoomCall = Schemas['ZoomCall'];
export type ZoomOperator = Schemas['ZoomOperator'];
export type RanksReport = Schemas['RanksReport'];
export type RunDetail = Schemas['GetRunResponse'];
export type CollectorStatus = paths['/api/v1/status']['get']['responses'][200]['content']['application/json'];
/** A number of the API: JSON has no NaN and no infinity. */
export type ApiNumber = number | 'NaN' | 'Infinity' | '-Infinity';

export type Paths = paths;
export type GetPath = { [P in keyof paths]: paths[P] extends { get: { responses: unknown } } ? P : never }[keyof paths];
export type Answer<P extends GetPath> = paths[P] extends {
  get: { responses: { 200: { content: { 'application/json': infer A } } } };
}
  ? A
  : never;
type QueryOf<P extends GetPath> = paths[P] extends { get: { parameters: { query?: infer Q } } } ? NonNullable<Q> : never;
export type Parameters<P extends GetPath> = [QueryOf<P>] extends [never] ? Record<string, never> : QueryOf<P>;
