#include "server/store/clickhouse/shard_place.h"

#include <string>
#include <string_view>

#include "common/names.h"
#include "common/text.h"
#include "server/store/byte_io.h"
#include "server/store/clickhouse/entries.h"
#include "server/store/clickhouse/schema.h"

namespace statcollect {
namespace {

constexpr char kShardPlaceKey[] = "shard";

// "2 of 3 shards", then the identities: of the first shard all, of the others the first, whose list
// counts.
std::string TextOf(const ShardPlace& place) {
  std::string text =
      std::to_string(place.number) + " of " + std::to_string(place.identities.size()) + " shards";
  if (place.identities.size() == 1) return text;
  for (const StoreIdentity& identity : place.identities) {
    text += " " + HexOf(identity.id);
    if (place.number > 1) break;
  }
  return text;
}

std::string Attempted(const Engine& engine) { return "open the store " + engine.dsn().Describe(); }

Status OtherShardPlace(const Engine& engine, const std::string& found, const std::string& wanted) {
  const auto number = [](const std::string& text) { return text.substr(0, text.find(" shards")); };
  std::string what =
      "found that it is shard " + Printable(number(found)) + "; expected shard " + number(wanted);
  if (number(found) == number(wanted)) {
    what = "found that it is shard " + number(found) +
           " beside other databases than the ones named; expected the same shards as ever";
  }
  return {Code::kFailedPrecondition,
          Attempted(engine) + ": " + what +
              ", because a rank's records lie in the shard of its number; name all shards in "
              "--store as they were named first, in that order, or another database, and copy the "
              "runs there with statctl move migrate"};
}

Result<bool> HasAttempts(Engine& engine) {
  bool has = false;
  STATCOLLECT_RETURN_IF_ERROR(SelectOne(
      engine, Attempted(engine), "SELECT count() AS attempts FROM " + TableName(engine, "attempts"),
      [&](ByteReader& in) { has = in.U64() > 0; }));
  return has;
}

}  // namespace

Status CheckShardPlace(Engine& engine, const ShardPlace& place) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto found,
                               ReadEntry(engine, Attempted(engine), kShardPlaceKey));
  const std::string wanted = TextOf(place);
  if (!found.empty())
    return found == wanted ? Status::Ok() : OtherShardPlace(engine, found, wanted);
  if (place.identities.size() == 1) return Status::Ok();
  STATCOLLECT_ASSIGN_OR_RETURN(const auto has, HasAttempts(engine));
  return has ? OtherShardPlace(engine, "1 of 1", wanted) : Status::Ok();
}

Status TakeShardPlace(Engine& engine, const ShardPlace& place) {
  STATCOLLECT_RETURN_IF_ERROR(CheckShardPlace(engine, place));
  const auto stands = EnsureEntries(engine, Attempted(engine), {{kShardPlaceKey, TextOf(place)}});
  return stands.ok() ? CheckShardPlace(engine, place) : stands.status();
}

}  // namespace statcollect
