#include "server/store/clickhouse/chain.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/store/byte_io.h"
#include "server/store/clickhouse/schema.h"

namespace statcollect {

void Chain::Finish() {
  limits_.assign(links_.size(), std::nullopt);
  std::uint64_t limit = ~std::uint64_t{0};
  for (const Link* link = current(); link != nullptr && link->n > 0;) {
    limits_[static_cast<std::size_t>(link - links_.data())] = limit;
    limit = std::min(limit, link->cut);
    link = link->parent < link->epoch ? Find(link->parent) : nullptr;
  }
}

const Chain::Link* Chain::Find(std::uint64_t epoch) const {
  const auto at =
      std::lower_bound(links_.begin(), links_.end(), epoch,
                       [](const Link& link, std::uint64_t wanted) { return link.epoch < wanted; });
  return at == links_.end() || at->epoch != epoch ? nullptr : &*at;
}

bool Chain::Counts(std::uint64_t epoch, std::uint64_t seq) const {
  if (epoch == 0) return true;
  const Link* link = Find(epoch);
  if (link == nullptr) return false;
  const auto& limit = limits_[static_cast<std::size_t>(link - links_.data())];
  return limit && seq <= *limit;
}

const Chain::Link* Chain::current() const {
  const auto at =
      std::find_if(links_.rbegin(), links_.rend(), [](const Link& link) { return link.n > 0; });
  return at == links_.rend() ? nullptr : &*at;
}

Result<Chain> ReadChain(Engine& engine, AttemptId attempt, std::uint32_t rank) {
  const std::string query =
      "SELECT epoch, n, seq, cut, parent, value FROM " + TableName(engine, "records") + " WHERE " +
      SqlPlace(attempt, RowFamily::kRank, rank) + " ORDER BY epoch, n DESC LIMIT 1 BY epoch";
  Chain chain;
  const auto add = [&](ByteReader& in) {
    chain.Add({.epoch = in.U64(),
               .n = in.U64(),
               .seq = in.U64(),
               .cut = in.U64(),
               .parent = in.U64(),
               .value = in.Text()});
  };
  STATCOLLECT_RETURN_IF_ERROR(
      SelectRows(engine, "read the state of rank " + std::to_string(rank), query, add));
  chain.Finish();
  return chain;
}

}  // namespace statcollect
