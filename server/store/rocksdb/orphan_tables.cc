#include "server/store/rocksdb/orphan_tables.h"

#include <algorithm>
#include <memory>
#include <set>

#include <rocksdb/options.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table_properties.h>

#include "server/store/key.h"
#include "server/store/live_attempts.h"
#include "server/store/rocksdb/catalogue.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/util.h"

namespace statcollect {
namespace {

constexpr int kKeysRead = 64;  // of each table; one that is lost is lost with all of them

std::set<std::string> NamedTables(const Database& database) {
  std::vector<rocksdb::LiveFileMetaData> files;
  database.db->GetLiveFilesMetaData(&files);
  std::set<std::string> names;
  for (const auto& file : files) names.insert(file.name.substr(file.name.find_last_of('/') + 1));
  return names;
}

// Whether a record of the table is nowhere else. A table that cannot be read says nothing: it was
// being written.
Result<bool> HoldsLostRecords(const Database& database, const LiveAttempts::Snapshot& attempts,
                              rocksdb::SstFileReader& table) {
  const std::string family_name = table.GetTableProperties()->column_family_name;
  const auto family = std::find_if(kOfAttempts.begin(), kOfAttempts.end(),
                                   [&](Family f) { return kFamilies[f] == family_name; });
  if (family == kOfAttempts.end()) return false;
  const std::unique_ptr<rocksdb::Iterator> it(table.NewIterator({}));
  it->SeekToFirst();
  for (int i = 0; i < kKeysRead && it->Valid(); ++i, it->Next()) {
    const std::string_view key = View(it->key());
    if (key.size() < sizeof(AttemptId) || attempts.IsDead(ReadU32(key))) continue;
    rocksdb::PinnableSlice value;
    const rocksdb::Status found =
        database.db->Get({}, database.families[*family], it->key(), &value);
    if (found.IsNotFound()) return true;
    STATCOLLECT_RETURN_IF_ERROR(FromRocks("look for lost records", found));
  }
  return false;
}

}  // namespace

Result<std::vector<std::string>> FindOrphanTables(const Database& database, rocksdb::Env& env,
                                                  const std::string& directory) {
  std::vector<std::string> names, orphans;
  STATCOLLECT_RETURN_IF_ERROR(
      FromRocks("list '" + directory + "'", env.GetChildren(directory, &names)));
  LiveAttempts attempts;
  STATCOLLECT_RETURN_IF_ERROR(Catalogue::LoadAttempts(database, attempts));
  const std::set<std::string> named = NamedTables(database);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (!name.ends_with(".sst") || named.contains(name)) continue;
    rocksdb::Options options;
    options.env = &env;
    rocksdb::SstFileReader table(options);
    if (!table.Open(directory + "/" + name).ok()) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(const auto lost,
                                 HoldsLostRecords(database, attempts.snapshot(), table));
    if (lost) orphans.push_back(name);
  }
  return orphans;
}

}  // namespace statcollect
