// Turns messages into flat records for CSV: one column per field.
#ifndef STATCOLLECT_CLIENT_RENDER_FLATTEN_H_
#define STATCOLLECT_CLIENT_RENDER_FLATTEN_H_

#include <string>
#include <vector>

#include <google/protobuf/message.h>

#include "client/render/table.h"

namespace statcollect::client {

// Columns are the fields of the message in order; those of a nested message are "outer_inner"
// ("stats" adds no prefix). An absent value is an empty cell, a list or map is a cell of JSON, and
// everything else is as in JSON (proto/json.h). `first`: columns to move to the front.
template <typename Records>
Table FlattenRecords(const Records& records, const std::vector<std::string>& first = {});

// As above for records of one type that arrive one by one.
class Flattener {
 public:
  // `last`: columns without a field of their own.
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
