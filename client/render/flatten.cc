#include "client/render/flatten.h"

#include <algorithm>
#include <utility>

#include <google/protobuf/descriptor.h>

#include <nlohmann/json.hpp>

#include "proto/json.h"

namespace statcollect::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using Json = nlohmann::ordered_json;

constexpr std::string_view kInlined = "stats.";

// Paths of the leaves: "a.min" for field min of the message in field a.
void AddPaths(const Descriptor& type, const std::string& prefix, std::vector<std::string>& paths) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const bool nested =
        !field.is_repeated() && field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (nested) {
      AddPaths(*field.message_type(), prefix + field.name() + ".", paths);
    } else {
      paths.push_back(prefix + field.name());
    }
  }
}

std::string Title(const std::string& path) {
  std::string title = path.starts_with(kInlined) ? path.substr(kInlined.size()) : path;
  std::replace(title.begin(), title.end(), '.', '_');
  return title;
}

const Json* Find(const Json& record, std::string_view path) {
  const Json* at = &record;
  while (true) {
    if (!at->is_object()) return nullptr;  // an absent message
    const std::size_t dot = path.find('.');
    const auto found = at->find(std::string(path.substr(0, dot)));
    if (found == at->end()) return nullptr;
    at = &*found;
    if (dot == std::string_view::npos) return at;
    path.remove_prefix(dot + 1);
  }
}

std::string Cell(const Json* value) {
  if (value == nullptr || value->is_null()) return {};
  if (value->is_string()) return value->get<std::string>();
  return DumpJson(*value, -1);
}

std::vector<std::string> OrderedPaths(const Descriptor& type,
                                      const std::vector<std::string>& first) {
  std::vector<std::string> paths;
  AddPaths(type, "", paths);
  std::vector<std::string> ordered = first;
  for (std::string& path : paths) {
    if (std::find(first.begin(), first.end(), path) == first.end())
      ordered.push_back(std::move(path));
  }
  return ordered;
}

std::vector<Column> Columns(const std::vector<std::string>& paths,
                            const std::vector<std::string>& last) {
  std::vector<Column> columns;
  for (const std::string& path : paths) columns.push_back({.title = Title(path)});
  for (const std::string& title : last) columns.push_back({.title = title});
  return columns;
}

}  // namespace

Flattener::Flattener(const Descriptor& type, const std::vector<std::string>& first,
                     const std::vector<std::string>& last)
    : names_(OrderedPaths(type, first)), table_(Columns(names_, last)) {}

void Flattener::Add(const google::protobuf::Message& record, const std::vector<std::string>& last) {
  const Json json = ToJson(record);
  std::vector<std::string> cells;
  cells.reserve(names_.size());
  for (const std::string& name : names_) cells.push_back(Cell(Find(json, name)));
  cells.insert(cells.end(), last.begin(), last.end());
  table_.AddRow(std::move(cells));
}

}  // namespace statcollect::client
