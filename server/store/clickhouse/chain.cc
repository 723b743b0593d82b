#include "server/store/clickhouse/chain.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/store/byte_io.h"
#include "server/store/clickhouse/schema.h"

namespace statcollect {
namespace {

Result<std::map<std::uint32_t, Chain>> ReadChainsWhere(Engine& engine, const std::string& attempted,
                                                       const std::string& where) {
  const auto answer = engine.Select(attempted, "SELECT rank, epoch, n, seq, cut, value FROM " +
                                                   TableName(engine, "records") + " WHERE " + where +
                                                   " ORDER BY rank, epoch, n DESC LIMIT 1 BY rank, epoch");
  if (!answer.ok()) return answer.status();
  std::map<std::uint32_t, Chain> chains;
  ByteReader in(*answer);
  while (in.ok() && in.remaining() > 0) {
    const std::uint32_t rank = in.U32();
    Chain::Link link{.epoch = in.U64(), .n = in.U64(), .seq = in.U64(), .cut = in.U64(), .value = in.Text()};
    chains[rank].Add(std::move(link));
  }
  if (!in.ok()) return BadAnswer(engine, attempted);
  for (auto& [rank, chain] : chains) chain.Finish();
  return chains;
}

}  // namespace

void Chain::Finish() {
  limits_.assign(links_.size(), ~std::uint64_t{0});
  for (std::size_t i = links_.size(); i-- > 1;) {
    const Link& later = links_[i];
    limits_[i - 1] = std::min(limits_[i], later.n == 0 ? ~std::uint64_t{0} : later.cut);
  }
}

bool Chain::Counts(std::uint64_t epoch, std::uint64_t seq) const {
  if (epoch == 0) return true;
  const auto at =
      std::lower_bound(links_.begin(), links_.end(), epoch,
                       [](const Link& link, std::uint64_t wanted) { return link.epoch < wanted; });
  if (at == links_.end() || at->epoch != epoch) return false;
  return seq <= limits_[static_cast<std::size_t>(at - links_.begin())];
}

const Chain::Link* Chain::current() const {
  const auto at = std::find_if(links_.rbegin(), links_.rend(), [](const Link& link) { return link.n > 0; });
  return at == links_.rend() ? nullptr : &*at;
}

Result<Chain> ReadChain(Engine& engine, AttemptId attempt, std::uint32_t rank) {
  auto chains = ReadChainsWhere(engine, "read the state of rank " + std::to_string(rank),
                                SqlPlace(attempt, RowFamily::kRank, rank));
  if (!chains.ok()) return chains.status();
  return chains->empty() ? Chain() : std::move(chains->begin()->second);
}

Result<std::map<std::uint32_t, Chain>> ReadChains(Engine& engine, AttemptId attempt) {
  return ReadChainsWhere(engine, "read the ranks of attempt " + std::to_string(attempt),
                         "attempt = " + std::to_string(attempt) + " AND family = " + SqlOf(RowFamily::kRank));
}

}  // namespace statcollect
