// What the routers of mixtures of experts chose in two runs: tokens that went to other experts,
// whether rounding explains that, and what differs behind the experts otherwise.
#ifndef STATCOLLECT_SERVER_QUERY_TOKENS_ROUTERS_H_
#define STATCOLLECT_SERVER_QUERY_TOKENS_ROUTERS_H_

#include <stop_token>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/query/reports.h"
#include "server/store/record_reader.h"

namespace statcollect::query {

struct RouterQuestion {
  std::string run_a, run_b;
  std::string map;                 // NameMap
  std::string steps;               // StepSet
  std::vector<std::string> noise;  // repeats of A; empty: its twins
};

struct RouterAnswer {
  std::vector<RouterDiff> routers;  // in A's order
  NearTies near_ties;               // of routers whose logits and choices rounding explains
};

// A flip is a token that a router sends to other experts in B. To go from one to the other, two
// logits have to move by the margins of both runs, together at most sqrt(2) times the distance of
// the logits: a flip is a near tie if rounding explains that distance (LimitOfRounding).
//
// Walks the taps of each step in A's order. What differs beyond its limit, other than tokens that a
// near tie sent elsewhere, is where the difference begins; routers behind it follow from it.
//
// Cost: reads the choices of both runs; if both have some, also all other token records, and those
// of the repeats. Memory: as GetTokens. kNotFound: no such run; kResourceExhausted: as
// TokenTable::Read.
Result<RouterAnswer> CompareRouters(RecordReader& store, const RouterQuestion& question,
                                    const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_TOKENS_ROUTERS_H_
