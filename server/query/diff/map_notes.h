// What a diff says about its map of names.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_MAP_NOTES_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_MAP_NOTES_H_

#include <string>

#include "server/query/compare/alignment.h"
#include "server/query/compare/name_map.h"
#include "server/query/reports.h"

namespace statcollect::query {

// Rules without effect, names that were left out, and tensors of which only statistics could be
// compared because their elements are in another order. Call it once all alignments have been made.
void AddMapNotes(const NameMap& names, const Aligner& aligner, DiffReport& report,
                 const std::string& run_a, const std::string& run_b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_MAP_NOTES_H_
