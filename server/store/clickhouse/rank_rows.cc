#include "server/store/clickhouse/rank_rows.h"

#include <algorithm>
#include <set>

#include "common/text.h"
#include "server/store/byte_io.h"
#include "server/store/codec/catalogue.h"

namespace statcollect {
namespace {

// Of rows with the same key the one of the highest n stands. `more`: which ranks.
Result<std::map<std::uint32_t, RankRows>> Select(Engine& engine, const std::string& attempted,
                                                 AttemptId attempt, const std::string& more) {
  const std::string query =
      "SELECT rank, family, epoch, n, seq, cut, parent, value FROM " +
      TableName(engine, "records") + " WHERE attempt = " + std::to_string(attempt) +
      " AND family IN (" + SqlOf(RowFamily::kHello) + ", " + SqlOf(RowFamily::kSetting) + ", " +
      SqlOf(RowFamily::kRank) + ")" + more + " ORDER BY rank, family, item, step, epoch, n DESC " +
      "LIMIT 1 BY rank, family, item, step, epoch";
  std::map<std::uint32_t, RankRows> rows;
  STATCOLLECT_RETURN_IF_ERROR(SelectRows(engine, attempted, query, [&](ByteReader& in) {
    RankRows& of = rows[in.U32()];
    const auto family = static_cast<RowFamily>(in.U8());
    Chain::Link link{.epoch = in.U64(),
                     .n = in.U64(),
                     .seq = in.U64(),
                     .cut = in.U64(),
                     .parent = in.U64(),
                     .value = in.Text()};
    if (family == RowFamily::kRank)
      of.chain.Add(std::move(link));
    else
      of.infos.push_back(
          {.family = family, .epoch = link.epoch, .seq = link.seq, .value = std::move(link.value)});
  }));
  for (auto& [rank, of] : rows) of.chain.Finish();
  return rows;
}

std::string ReadRanksOf(AttemptId attempt) {
  return "read the ranks of attempt " + std::to_string(attempt);
}

}  // namespace

Result<std::optional<RankMeta>> RankRows::Meta(const std::string& what) const {
  if (chain.current() == nullptr) return std::optional<RankMeta>();
  STATCOLLECT_ASSIGN_OR_RETURN(auto meta, Decode<RankMeta>(what, chain.current()->value));
  std::vector<SettingRecord> settings;
  for (const Info& info : infos) {
    if (!chain.Counts(info.epoch, info.seq)) continue;
    if (info.family == RowFamily::kHello) {
      STATCOLLECT_ASSIGN_OR_RETURN(meta.info, Decode<SessionInfo>(what, info.value));
    } else {
      STATCOLLECT_ASSIGN_OR_RETURN(auto setting, Decode<SettingRecord>(what, info.value));
      settings.push_back(std::move(setting));
    }
  }
  for (SettingRecord& setting : settings)
    meta.info.config[std::move(setting.name)] = std::move(setting.value);
  return std::optional(std::move(meta));
}

bool RankRows::has_hello() const {
  return std::any_of(infos.begin(), infos.end(), [this](const Info& info) {
    return info.family == RowFamily::kHello && chain.Counts(info.epoch, info.seq);
  });
}

RankReads::RankReads(Engine& engine)
    : some_([&engine](AttemptId attempt, const std::set<std::uint32_t>& ranks) {
        return Select(engine, ReadRanksOf(attempt), attempt,
                      " AND rank IN (" + Joined(ranks) + ")");
      }),
      all_([&engine](AttemptId attempt, const std::set<std::monostate>&) {
        return Select(engine, ReadRanksOf(attempt), attempt, "");
      }) {}

Result<RankRows> RankReads::Read(AttemptId attempt, std::uint32_t rank) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto rows, some_.Read(attempt, rank));
  const auto own = rows->find(rank);
  return own == rows->end() ? RankRows() : own->second;
}

Result<std::map<std::uint32_t, RankMeta>> RankReads::ReadAll(AttemptId attempt) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto rows, all_.Read(attempt, {}));
  std::map<std::uint32_t, RankMeta> ranks;
  for (const auto& [rank, of] : *rows) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto meta, of.Meta("rank " + std::to_string(rank) +
                                                    " of attempt " + std::to_string(attempt)));
    if (meta) ranks[rank] = *std::move(meta);
  }
  return ranks;
}

}  // namespace statcollect
