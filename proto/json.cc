#include "proto/json.h"

#include <cctype>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>

#include <google/protobuf/descriptor.h>

#include "common/text.h"

namespace statcollect {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

constexpr std::string_view kZeroSuffix = "UNSPECIFIED";

Json OfDouble(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json OfEnum(const EnumDescriptor& type, int value) {
  if (value == 0) return nullptr;
  if (type.FindValueByNumber(value) == nullptr) return value;
  return EnumText(type, value);
}

Json OfUint64(const FieldDescriptor& field, std::uint64_t value) {
  if (field.type() == FieldDescriptor::TYPE_FIXED64) return HexOf(value);
  return value;
}

Json OfString(const FieldDescriptor& field, const std::string& value) {
  if (field.type() != FieldDescriptor::TYPE_BYTES) return value;
  return HexOf(std::span(reinterpret_cast<const std::uint8_t*>(value.data()), value.size()));
}

// Value of a field that is neither repeated nor absent.
Json OfSingle(const Message& message, const FieldDescriptor& field) {
  const Reflection& r = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return OfUint64(field, r.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return OfDouble(r.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return OfDouble(r.GetFloat(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return OfEnum(*field.enum_type(), r.GetEnumValue(message, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      return OfString(field, r.GetString(message, &field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(r.GetMessage(message, &field));
  }
  return nullptr;
}

Json OfElement(const Message& message, const FieldDescriptor& field, int i) {
  const Reflection& r = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r.GetRepeatedInt32(message, &field, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetRepeatedInt64(message, &field, i);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.GetRepeatedUInt32(message, &field, i);
    case FieldDescriptor::CPPTYPE_UINT64:
      return OfUint64(field, r.GetRepeatedUInt64(message, &field, i));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return OfDouble(r.GetRepeatedDouble(message, &field, i));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return OfDouble(r.GetRepeatedFloat(message, &field, i));
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetRepeatedBool(message, &field, i);
    case FieldDescriptor::CPPTYPE_ENUM:
      return OfEnum(*field.enum_type(), r.GetRepeatedEnumValue(message, &field, i));
    case FieldDescriptor::CPPTYPE_STRING:
      return OfString(field, r.GetRepeatedString(message, &field, i));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(r.GetRepeatedMessage(message, &field, i));
  }
  return nullptr;
}

// Object keys are text: numbers and booleans in decimal.
std::string MapKey(const Message& entry, const FieldDescriptor& key) {
  const Json value = OfSingle(entry, key);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Json OfMap(const Message& message, const FieldDescriptor& field) {
  const Reflection& r = *message.GetReflection();
  const FieldDescriptor& key = *field.message_type()->map_key();
  const FieldDescriptor& value = *field.message_type()->map_value();
  std::map<std::string, Json> sorted;
  for (int i = 0; i < r.FieldSize(message, &field); ++i) {
    const Message& entry = r.GetRepeatedMessage(message, &field, i);
    sorted.emplace(MapKey(entry, key), OfSingle(entry, value));
  }
  Json object = Json::object();
  for (auto& [name, json] : sorted) object[name] = std::move(json);
  return object;
}

Json OfField(const Message& message, const FieldDescriptor& field) {
  const Reflection& r = *message.GetReflection();
  if (field.is_map()) return OfMap(message, field);
  if (field.is_repeated()) {
    Json list = Json::array();
    for (int i = 0; i < r.FieldSize(message, &field); ++i)
      list.push_back(OfElement(message, field, i));
    return list;
  }
  if (field.has_presence() && !r.HasField(message, &field)) return nullptr;
  return OfSingle(message, field);
}

// The common prefix of the type's value names: "DISTANCE_KIND_" if its zero is
// DISTANCE_KIND_UNSPECIFIED.
std::string_view Prefix(const EnumDescriptor& type) {
  const auto* zero = type.FindValueByNumber(0);
  if (zero == nullptr) return {};
  const std::string_view name = zero->name();
  return name.ends_with(kZeroSuffix) ? name.substr(0, name.size() - kZeroSuffix.size())
                                     : std::string_view{};
}

}  // namespace

nlohmann::ordered_json ToJson(const Message& message) {
  Json object = Json::object();
  const auto& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    object[type.field(i)->name()] = OfField(message, *type.field(i));
  }
  return object;
}

std::string EnumText(const EnumDescriptor& type, int value) {
  const auto* descriptor = type.FindValueByNumber(value);
  if (descriptor == nullptr) return std::to_string(value);
  std::string_view name = descriptor->name();
  const std::string_view prefix = Prefix(type);
  if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  std::string text(name);
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string DumpJson(const Json& json, int indent) {
  return json.dump(indent, ' ', true, Json::error_handler_t::replace);
}

}  // namespace statcollect
