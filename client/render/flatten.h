// Messages as flat records: one column a field, for CSV.
#ifndef STATCOLLECT_CLIENT_RENDER_FLATTEN_H_
#define STATCOLLECT_CLIENT_RENDER_FLATTEN_H_

#include <string>
#include <vector>

#include <google/protobuf/message.h>

#include "client/render/table.h"

namespace statcollect::client {

// Columns are the fields of the message by name, in order, those of a message within it as "outer_inner"
// ("stats" alone adds no prefix); an absent value is an empty cell, a list or map is a cell of JSON,
// everything else is as in JSON (proto/json.h). `first`: names of columns to move to the front.
template <typename Records>
Table FlattenRecords(const Records& records, const std::vector<std::string>& first = {});

// The same for one type whose records come one by one.
class Flattener {
 public:
  // `last`: columns that no field stands for.
  Flattener(const google::protobuf::Descriptor& type, const std::vector<std::string>& first,
            const std::vector<std::string>& last = {});
  void Add(const google::protobuf::Message& record, const std::vector<std::string>& last = {});
  Table Take() && { return std::move(table_); }

 private:
  std::vector<std::string> names_;  // dotted paths, in the order of the columns
  Table table_;
};

template <typename Records>
Table FlattenRecords(const Records& records, const std::vector<std::string>& first) {
  Flattener flattener(*Records::value_type::descriptor(), first);
  for (const auto& record : records) flattener.Add(record);
  return std::move(flattener).Take();
}

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RENDER_FLATTEN_H_
