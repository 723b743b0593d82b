// The sentences of findings.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_SENTENCE_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_SENTENCE_H_

#include <string>

#include "server/query/ranks/ranks.h"

namespace statcollect::query {

// One sentence; for missing ranks and steps, the text that the finding already has.
std::string Sentence(const RankFinding& finding);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_SENTENCE_H_
