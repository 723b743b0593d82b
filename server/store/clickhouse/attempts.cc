#include "server/store/clickhouse/attempts.h"

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/names.h"
#include "common/parse.h"
#include "common/text.h"
#include "server/store/byte_io.h"
#include "server/store/clickhouse/schema.h"
#include "server/store/document_store.h"

namespace statcollect {
namespace {

constexpr int kIdTriesMax = 64;
constexpr std::string_view kAttemptColumns =
    "id, version, state, run, launch, number, world_size, start";

// A later state outdoes an earlier one; of two rows of one attempt that two collectors wrote at the
// same time, the one that began first stands.
std::uint64_t VersionOf(AttemptState state, std::uint64_t revision, std::int64_t start_unix_nanos) {
  constexpr std::uint64_t kStartBits = 52;
  const std::uint64_t micros = std::min<std::uint64_t>(
      static_cast<std::uint64_t>(std::max<std::int64_t>(start_unix_nanos, 0)) / 1000,
      (std::uint64_t{1} << kStartBits) - 1);
  return static_cast<std::uint64_t>(state) << 62 |
         std::min<std::uint64_t>(revision, 1023) << kStartBits |
         ((std::uint64_t{1} << kStartBits) - 1 - micros);
}
std::uint64_t RevisionOf(std::uint64_t version) { return version >> 52 & 1023; }

AttemptId IdOf(const AttemptMeta& attempt, std::uint64_t nonce, int tries) {
  ByteWriter of;
  of.Text(attempt.run);
  of.Text(attempt.launch);
  of.U32(attempt.number);
  of.U64(nonce);
  of.U32(static_cast<std::uint32_t>(tries));
  const auto id = static_cast<AttemptId>(XXH3_64bits(of.bytes().data(), of.bytes().size()));
  return id == 0 ? 1 : id;
}

// Whether it is an attempt of the same run and launch.
bool IsOf(const AttemptMeta& wanted, const AttemptMeta& attempt) {
  return attempt.run == wanted.run && attempt.launch == wanted.launch;
}

std::string OwnersText(const std::vector<AttemptMeta>& attempts) {
  std::string text;
  for (const AttemptMeta& attempt : attempts)
    text += (text.empty() ? "" : ",") + std::to_string(attempt.id);
  return text;
}

bool OwnedBy(const std::string& owners, const std::set<AttemptId>& live) {
  const auto parts = PartsOf(owners, ',');
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    const auto id = ParseNumber<AttemptId>(part);
    return id && live.contains(*id);
  });
}

std::set<AttemptId> IdsOf(const std::vector<AttemptMeta>& attempts) {
  std::set<AttemptId> ids;
  for (const AttemptMeta& attempt : attempts) ids.insert(attempt.id);
  return ids;
}

Status NoSuchRun(const std::string& attempted) {
  return {Code::kNotFound, attempted + ": there is no such run; statctl runs lists them"};
}

}  // namespace

AttemptTable::AttemptTable(Engine& engine)
    : engine_(engine),
      attempts_(
          [this](const std::string& run, const std::set<std::monostate>&) { return Live(&run); }),
      documents_([this](const RunAndName& of, const std::set<std::monostate>&) {
        return Documents(
            "run = " + SqlText(of.first) + " AND kind = 0 AND name = " + SqlText(of.second),
            /*with_value=*/true);
      }) {}

Result<std::vector<AttemptRow>> AttemptTable::RowsWhere(const std::string& where) {
  const std::string query = "SELECT " + std::string(kAttemptColumns) + " FROM " +
                            TableName(engine_, "attempts") + where +
                            " ORDER BY id, version DESC LIMIT 1 BY id";
  std::vector<AttemptRow> rows;
  STATCOLLECT_RETURN_IF_ERROR(SelectRows(engine_, "read the attempts", query, [&](ByteReader& in) {
    AttemptRow row;
    row.meta.id = in.U32();
    row.version = in.U64();
    row.state = static_cast<AttemptState>(in.U8());
    row.meta.run = in.Text();
    row.meta.launch = in.Text();
    row.meta.number = in.U32();
    row.meta.world_size = in.U32();
    row.meta.start_unix_nanos = static_cast<std::int64_t>(in.U64());
    rows.push_back(std::move(row));
  }));
  return rows;
}

Result<std::vector<AttemptRow>> AttemptTable::Rows(const std::string* run) {
  return RowsWhere(run == nullptr ? "" : " WHERE run = " + SqlText(*run));
}

Result<std::optional<AttemptRow>> AttemptTable::Row(AttemptId id) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto rows, RowsWhere(" WHERE id = " + std::to_string(id)));
  return rows.empty() ? std::optional<AttemptRow>() : std::move(rows.front());
}

Result<std::vector<AttemptMeta>> AttemptTable::Live(const std::string* run) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto rows, Rows(run));
  std::vector<AttemptMeta> live;
  for (AttemptRow& row : rows) {
    if (row.state == AttemptState::kLive) live.push_back(std::move(row.meta));
  }
  std::sort(live.begin(), live.end(), [](const AttemptMeta& a, const AttemptMeta& b) {
    return std::tie(a.run, a.number, a.start_unix_nanos, a.id) <
           std::tie(b.run, b.number, b.start_unix_nanos, b.id);
  });
  // Two launches may have written the same number, each before it could read the other's. The later
  // one has the next.
  for (std::size_t i = 1; i < live.size(); ++i) {
    if (live[i].run == live[i - 1].run)
      live[i].number = std::max(live[i].number, live[i - 1].number + 1);
  }
  return live;
}

Result<std::vector<std::string>> AttemptTable::ListRuns() {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto live, Live());
  std::vector<std::string> runs;
  for (const AttemptMeta& attempt : live) {
    if (runs.empty() || runs.back() != attempt.run) runs.push_back(attempt.run);
  }
  return runs;
}

Result<std::vector<AttemptMeta>> AttemptTable::Attempts(const std::string& run) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto attempts, attempts_.Read(run, {}));
  return *attempts;
}

Status AttemptTable::PutRow(const std::string& attempted, const AttemptRow& row) {
  ByteWriter to;
  to.U32(row.meta.id);
  to.U64(row.version);
  to.U8(static_cast<std::uint8_t>(row.state));
  to.Text(row.meta.run);
  to.Text(row.meta.launch);
  to.U32(row.meta.number);
  to.U32(row.meta.world_size);
  to.U64(static_cast<std::uint64_t>(row.meta.start_unix_nanos));
  return engine_.Insert(
      attempted, TableName(engine_, "attempts") + " (" + std::string(kAttemptColumns) + ")",
      to.bytes(), "attempt " + std::to_string(row.meta.id) + " " + std::to_string(row.version));
}

Result<AttemptMeta> AttemptTable::CreateAttempt(const AttemptMeta& wanted) {
  const std::string attempted = "create attempt of run '" + wanted.run + "'";
  STATCOLLECT_ASSIGN_OR_RETURN(const auto existing, Attempts(wanted.run));
  AttemptRow row{.meta = wanted};
  for (const AttemptMeta& other : existing)
    row.meta.number = std::max(row.meta.number, other.number + 1);
  row.meta.number = std::max(row.meta.number, std::uint32_t{1});
  row.version = VersionOf(AttemptState::kLive, 0, row.meta.start_unix_nanos);
  // A launch without a name is a launch of its own, whoever else creates one.
  const std::uint64_t nonce =
      wanted.launch.empty() ? std::uint64_t{std::random_device()()} << 32 | std::random_device()()
                            : 0;
  for (int tries = 0; tries < kIdTriesMax; ++tries) {
    // Of the number that was asked for: what else was created meanwhile does not change it.
    row.meta.id = IdOf(wanted, nonce, tries);
    STATCOLLECT_ASSIGN_OR_RETURN(const auto taken, Row(row.meta.id));
    if (taken && taken->state == AttemptState::kLive && wanted.number != 0 &&
        !wanted.launch.empty() && IsOf(wanted, taken->meta))
      return CreateAs(*taken);
    if (taken) continue;
    STATCOLLECT_RETURN_IF_ERROR(PutRow(attempted, row));
    STATCOLLECT_ASSIGN_OR_RETURN(const auto stands, Row(row.meta.id));
    if (!stands) return Status(Code::kDataLoss, attempted + ": it was written and cannot be read");
    if (stands->state != AttemptState::kLive || !IsOf(wanted, stands->meta))
      continue;  // another collector made the id's attempt, of another run, at the same moment
    return CreateAs(*stands);
  }
  return Status(Code::kInternal,
                attempted + ": found no free id in " + std::to_string(kIdTriesMax) + " tries");
}

// A number that is another one when it is read is written, too, so that it stays when the other
// attempt is removed.
Result<AttemptMeta> AttemptTable::CreateAs(AttemptRow row) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto all, Attempts(row.meta.run));
  const auto own = std::find_if(all.begin(), all.end(), [&](const AttemptMeta& attempt) {
    return attempt.id == row.meta.id;
  });
  if (own == all.end() || own->number == row.meta.number) return row.meta;
  row.meta.number = own->number;
  row.version = VersionOf(row.state, RevisionOf(row.version) + 1, row.meta.start_unix_nanos);
  STATCOLLECT_RETURN_IF_ERROR(PutRow("number the attempt of run '" + row.meta.run + "'", row));
  return row.meta;
}

Status AttemptTable::RetireAttempts(std::span<const AttemptId> ids) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto rows, Rows());
  for (AttemptRow row : rows) {
    if (row.state != AttemptState::kLive ||
        std::find(ids.begin(), ids.end(), row.meta.id) == ids.end())
      continue;
    row.state = AttemptState::kRetired;
    row.version = VersionOf(row.state, RevisionOf(row.version), row.meta.start_unix_nanos);
    STATCOLLECT_RETURN_IF_ERROR(PutRow("remove attempts", row));
  }
  return Status::Ok();
}

Status AttemptTable::PutRemoved(const std::vector<AttemptRow>& removed) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto known, Rows());
  std::set<AttemptId> ids;
  for (const AttemptRow& row : known) ids.insert(row.meta.id);
  for (AttemptRow row : removed) {
    if (ids.contains(row.meta.id)) continue;
    row.state = AttemptState::kRetired;
    row.version = VersionOf(row.state, RevisionOf(row.version), row.meta.start_unix_nanos);
    STATCOLLECT_RETURN_IF_ERROR(PutRow("remove attempts", row));
  }
  return Status::Ok();
}

Result<std::map<AttemptId, std::uint64_t>> AttemptTable::StoredRows(const std::string& attempted) {
  const std::string query =
      "SELECT partition, sum(rows) AS stored FROM system.parts WHERE active AND database = " +
      SqlText(engine_.dsn().database) + " AND table = 'records' GROUP BY partition";
  std::map<AttemptId, std::uint64_t> stored;
  STATCOLLECT_RETURN_IF_ERROR(SelectRows(engine_, attempted, query, [&](ByteReader& in) {
    const auto id = ParseNumber<AttemptId>(in.Text());
    const std::uint64_t rows = in.U64();
    if (id) stored[*id] = rows;
  }));
  return stored;
}

// Releases before 22 refuse every consistent read of a table whose last quorum part of any
// partition is gone, until the partition has another one. There, a row keeps the partition. Reads
// fail with code 289 between the two statements, and are tried again; if this process dies between
// them, the next start of any collector writes the row.
Status AttemptTable::DropData(const std::string& attempted, AttemptId id) {
  STATCOLLECT_RETURN_IF_ERROR(engine_.Execute(
      attempted, "ALTER TABLE " + TableName(engine_, "records") + " DROP PARTITION " +
                     std::to_string(id) +
                     (engine_.drops_any_size() ? " SETTINGS max_partition_size_to_drop = 0" : "")));
  if (!engine_.needs_last_part()) return Status::Ok();
  // Unlike any before, which the engine would take for a repetition.
  const RowStamp stamp{.n = std::uint64_t{std::random_device()()} << 32 | std::random_device()()};
  ByteWriter row;
  AddRecordRow(id, 0, {.family = RowFamily::kRemoved}, stamp, &row);
  return engine_.Insert(attempted, RecordsInto(engine_), row.bytes(),
                        "removed " + std::to_string(stamp.n));
}

Status AttemptTable::PurgeRetired(const std::function<bool()>& stopped) {
  const std::string attempted = "delete removed attempts";
  STATCOLLECT_ASSIGN_OR_RETURN(const auto rows, Rows());
  STATCOLLECT_ASSIGN_OR_RETURN(const auto stored, StoredRows(attempted));
  const std::uint64_t rest = engine_.needs_last_part() ? 1 : 0;
  Status failure;  // of one that cannot be deleted; the others are
  for (AttemptRow row : rows) {
    if (row.state == AttemptState::kLive) continue;
    if (stopped()) return {Code::kCancelled, attempted + ": stopped; the next start continues"};
    if (row.state == AttemptState::kRetired) {
      // Before anything is deleted, so that a read that finds less knows why.
      row.state = AttemptState::kPurged;
      row.version = VersionOf(row.state, RevisionOf(row.version), row.meta.start_unix_nanos);
      STATCOLLECT_RETURN_IF_ERROR(PutRow(attempted, row));
    }
    // More than the rest: also what another collector wrote since.
    const auto found = stored.find(row.meta.id);
    if ((found == stored.end() ? 0 : found->second) == rest) continue;
    const Status dropped = DropData(attempted, row.meta.id);
    if (dropped.code() == Code::kUnavailable) return dropped;
    if (failure.ok()) failure = dropped;
  }
  return failure;
}

Status AttemptTable::CheckLive(const std::string& attempted, AttemptId id) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto row, Row(id));
  if (row && row->state == AttemptState::kLive) return Status::Ok();
  return {Code::kNotFound, attempted + ": attempt " + std::to_string(id) + " has been removed"};
}

Status AttemptTable::CheckStillThere(const std::string& attempted, AttemptId id) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto row, Row(id));
  if (!row || row->state != AttemptState::kPurged) return Status::Ok();
  return {Code::kAborted,
          attempted + ": run '" + Printable(row->meta.run) + "' was removed while it was read"};
}

Result<std::vector<AttemptTable::DocumentRow>> AttemptTable::Documents(const std::string& where,
                                                                       bool with_value) {
  const std::string query = "SELECT run, version, gone, owners, " +
                            std::string(with_value ? "value" : "''") + " AS content FROM " +
                            TableName(engine_, "documents") + " WHERE " + where +
                            " ORDER BY run, kind, name, version DESC LIMIT 1 BY run, kind, name";
  std::vector<DocumentRow> rows;
  const auto take = [&](ByteReader& in) {
    DocumentRow row;
    row.run = in.Text();
    row.version = in.U64();
    row.gone = in.U8() != 0;
    row.owners = in.Text();
    row.value = in.Text();
    rows.push_back(std::move(row));
  };
  STATCOLLECT_RETURN_IF_ERROR(SelectRows(engine_, "read the documents of runs", query, take));
  return rows;
}

Status AttemptTable::WriteDocument(const std::string& attempted, const std::string& run,
                                   DocumentKind kind, const std::string& name,
                                   const std::optional<std::string>& content) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto attempts, Attempts(run));
  if (attempts.empty()) return NoSuchRun(attempted);
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto stored,
      Documents("run = " + SqlText(run) + " AND kind = " + std::to_string(static_cast<int>(kind)) +
                    " AND name = " + SqlText(name),
                /*with_value=*/false));
  ByteWriter row;
  row.Text(run);
  row.U8(static_cast<std::uint8_t>(kind));
  row.Text(name);
  const std::uint64_t version = stored.empty() ? 1 : stored.front().version + 1;
  row.U64(version);
  row.U8(content ? 0 : 1);
  row.Text(OwnersText(attempts));
  row.Text(content.value_or(""));
  // Two collectors may write at once: the token must not make one of them a repetition of the
  // other.
  const std::string token =
      "document " + std::to_string(std::random_device()()) + std::to_string(std::random_device()());
  return engine_.Insert(
      attempted,
      TableName(engine_, "documents") + " (run, kind, name, version, gone, owners, value)",
      row.bytes(), token);
}

Status AttemptTable::KeepRun(const std::string& run, bool keep) {
  return WriteDocument("keep run '" + run + "'", run, DocumentKind::kKept, "",
                       keep ? std::optional<std::string>("") : std::nullopt);
}

Status AttemptTable::PutDocument(const std::string& run, const std::string& name,
                                 const std::optional<std::string>& content) {
  const std::string attempted = "store " + name + " of run '" + run + "'";
  if (content && content->size() > kDocumentBytesMax) {
    return {Code::kInvalidArgument, attempted + ": found " + std::to_string(content->size()) +
                                        " bytes; expected at most " +
                                        std::to_string(kDocumentBytesMax)};
  }
  return WriteDocument(attempted, run, DocumentKind::kDocument, name, content);
}

Result<std::optional<std::string>> AttemptTable::Document(const std::string& run,
                                                          const std::string& name) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto stored, documents_.Read({run, name}, {}));
  if (stored->empty() || stored->front().gone) return std::optional<std::string>();
  const DocumentRow& document = stored->front();
  STATCOLLECT_ASSIGN_OR_RETURN(const auto attempts, Attempts(run));
  if (!OwnedBy(document.owners, IdsOf(attempts))) return std::optional<std::string>();
  return std::optional(document.value);
}

Result<std::set<std::string>> AttemptTable::KeptRuns() {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto stored, Documents("kind = 1", /*with_value=*/false));
  std::set<std::string> kept;
  if (std::all_of(stored.begin(), stored.end(), [](const DocumentRow& row) { return row.gone; }))
    return kept;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto live, Live());
  const auto ids = IdsOf(live);
  for (const DocumentRow& row : stored) {
    if (!row.gone && OwnedBy(row.owners, ids)) kept.insert(row.run);
  }
  return kept;
}

}  // namespace statcollect
