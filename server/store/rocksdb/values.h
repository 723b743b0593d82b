// Reads ranges of values that the catalogue's codec can decode.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_VALUES_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_VALUES_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "server/store/codec/catalogue.h"
#include "server/store/record_reader.h"
#include "server/store/rocksdb/database.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/util.h"

namespace statcollect {

// Decodes the value at the iterator with its key in the error, which takes as long as decoding it:
// for values that have failed already.
template <typename T>
Result<T> DecodeNamed(const std::string& what, const rocksdb::Iterator& it) {
  return Decode<T>(what + ", key " + it.key().ToString(/*hex=*/true), View(it.value()));
}

// The bytes under a key; none: there are none. `what` names them in errors.
inline Result<std::optional<std::string>> ReadBytes(const Database& database,
                                                    const std::string& what, Family family,
                                                    const std::string& key) {
  std::string bytes;
  const rocksdb::Status read = database.db->Get({}, database.families[family], key, &bytes);
  if (read.IsNotFound()) return std::optional<std::string>();
  STATCOLLECT_RETURN_IF_ERROR(FromRocks("read " + what, read));
  return std::optional(std::move(bytes));
}

// The value under a key, decoded.
template <typename T>
Result<std::optional<T>> ReadValue(const Database& database, const std::string& what, Family family,
                                   const std::string& key) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto bytes, ReadBytes(database, what, family, key));
  if (!bytes) return std::optional<T>();
  STATCOLLECT_ASSIGN_OR_RETURN(auto value, Decode<T>(what, *bytes));
  return std::optional(std::move(value));
}

// Calls visit(key, value) for each value in the range, in key order. `what` names the values in
// errors.
template <typename T, typename Visit>
Status ForEachValue(const Database& database, const std::string& what, Family family,
                    const KeyRange& range, const Visit& visit) {
  auto it = Iterate(*database.db, database.families[family], range);
  for (; it->Valid(); it->Next()) {
    auto value = Decode<T>(what, View(it->value()));
    if (!value.ok()) return DecodeNamed<T>(what, *it).status();
    visit(View(it->key()), *std::move(value));
  }
  return FromRocks("read " + what, it->status());
}

// Hands each value in the range to the visitor, changed by adapt(key, &value) first.
template <typename T, typename Adapt>
Status VisitValues(const Database& database, const std::string& what, Family family,
                   const KeyRange& range, const Visitor<T>& visitor, const Adapt& adapt) {
  auto it = Iterate(*database.db, database.families[family], range);
  for (; it->Valid(); it->Next()) {
    if (database.closing) return ReadInterrupted(what);
    STATCOLLECT_RETURN_IF_ERROR(visitor.Read(it->key().size() + it->value().size()));
    auto value = Decode<T>(what, View(it->value()));
    if (!value.ok()) return DecodeNamed<T>(what, *it).status();
    adapt(View(it->key()), &*value);
    STATCOLLECT_RETURN_IF_ERROR(visitor.take(*std::move(value)));
  }
  return FromRocks("read " + what, it->status());
}

template <typename T>
Result<std::vector<T>> ReadValues(const Database& database, const std::string& what, Family family,
                                  const KeyRange& range) {
  std::vector<T> values;
  STATCOLLECT_RETURN_IF_ERROR(
      ForEachValue<T>(database, what, family, range,
                      [&](std::string_view, T value) { values.push_back(std::move(value)); }));
  return values;
}

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_VALUES_H_
