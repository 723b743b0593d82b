#include "server/api/http/request.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include <google/protobuf/descriptor.h>

#include <nlohmann/json.hpp>

#include "common/choice.h"
#include "common/names.h"
#include "common/parse.h"
#include "common/utf8.h"
#include "proto/json.h"

namespace statcollect::api {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::json;

constexpr std::size_t kParametersMax = 100'000;
constexpr int kDepthMax = 16;

Status Wrong(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

Status WrongValue(const FieldDescriptor& field, const std::string& text,
                  const std::string& expected) {
  return Wrong("parameter '" + field.name() + "': found '" + Printable(text) + "'; expected " +
               expected);
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Percent-encoding and '+'; nothing if malformed.
std::optional<std::string> Decode(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

// Valid UTF-8, whose control characters separate words and lines.
bool IsPlainText(std::string_view text) {
  while (!text.empty()) {
    const Utf8Character character = DecodeUtf8(text);
    const char first = text.front();
    const bool separates = first == '\n' || first == '\t' || first == '\r';
    const bool control = (static_cast<unsigned char>(first) < 0x20 && !separates) || first == 0x7f;
    if (character.bytes == 0 || control) return false;
    text.remove_prefix(character.bytes);
  }
  return true;
}

template <typename T>
std::optional<T> Whole(const std::string& text) {
  const bool hex = std::is_unsigned_v<T> && text.rfind("0x", 0) == 0;
  return hex ? ParseNumber<T>(std::string_view(text).substr(2), 16) : ParseNumber<T>(text);
}

std::optional<bool> Flag(const std::string& text) {
  if (text.empty() || text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return std::nullopt;
}

// Parses the name used in JSON.
std::optional<int> EnumOf(const FieldDescriptor& field, const std::string& text) {
  const auto& type = *field.enum_type();
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0 && EnumText(type, type.value(i)->number()) == text)
      return type.value(i)->number();
  }
  return std::nullopt;
}

std::vector<std::string> EnumTexts(const FieldDescriptor& field) {
  const auto& type = *field.enum_type();
  std::vector<std::string> known;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) known.push_back(EnumText(type, type.value(i)->number()));
  }
  return known;
}

// Sets the field, or adds to a repeated one.
class Setter {
 public:
  Setter(Message& message, const FieldDescriptor& field)
      : message_(message), field_(field), r_(*message.GetReflection()) {}

  Status Set(const std::string& text) {
    switch (field_.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return Take(Whole<std::int32_t>(text), text, "a whole number", &Reflection::SetInt32,
                    &Reflection::AddInt32);
      case FieldDescriptor::CPPTYPE_INT64:
        return Take(Whole<std::int64_t>(text), text, "a whole number", &Reflection::SetInt64,
                    &Reflection::AddInt64);
      case FieldDescriptor::CPPTYPE_UINT32:
        return Take(Whole<std::uint32_t>(text), text, "a whole number in 0..4294967295",
                    &Reflection::SetUInt32, &Reflection::AddUInt32);
      case FieldDescriptor::CPPTYPE_UINT64:
        return Take(Whole<std::uint64_t>(text), text, "a whole number from 0",
                    &Reflection::SetUInt64, &Reflection::AddUInt64);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return Take(ParseNumber<double>(text), text, "a number", &Reflection::SetDouble,
                    &Reflection::AddDouble);
      case FieldDescriptor::CPPTYPE_FLOAT:
        return Take(ParseNumber<double>(text), text, "a number", &Reflection::SetFloat,
                    &Reflection::AddFloat);
      case FieldDescriptor::CPPTYPE_BOOL:
        return Take(Flag(text), text, "true or false", &Reflection::SetBool, &Reflection::AddBool);
      case FieldDescriptor::CPPTYPE_ENUM:
        if (!EnumOf(field_, text))
          return Wrong("parameter '" + field_.name() + "': " + NotOneOf(text, EnumTexts(field_)));
        return Take(EnumOf(field_, text), text, "", &Reflection::SetEnumValue,
                    &Reflection::AddEnumValue);
      case FieldDescriptor::CPPTYPE_STRING:
        return SetText(text);
      default:
        return Wrong("parameter '" + field_.name() + "' is an object; use POST with a JSON body");
    }
  }

 private:
  template <typename T, typename Set, typename Add>
  Status Take(const std::optional<T>& value, const std::string& text, const std::string& expected,
              Set set, Add add) {
    if (!value) return WrongValue(field_, text, expected);
    if (field_.is_repeated()) {
      (r_.*add)(&message_, &field_, *value);
    } else {
      (r_.*set)(&message_, &field_, *value);
    }
    return Status::Ok();
  }
  Status SetText(const std::string& text) {
    // A message with anything else cannot be read at its other end; the query checks the names.
    if (IsPlainText(text)) {
      if (field_.is_repeated()) {
        r_.AddString(&message_, &field_, text);
      } else {
        r_.SetString(&message_, &field_, text);
      }
      return Status::Ok();
    }
    return WrongValue(field_, text, "text without control characters, in UTF-8");
  }

  Message& message_;
  const FieldDescriptor& field_;
  const Reflection& r_;
};

Status Unknown(const std::string& name, const Descriptor& type) {
  return Wrong("no parameter '" + Printable(name) + "'; there are " + KnownParameters(type));
}

// The values after '=': a list for a repeated field. An encoded comma is part of a text. In numbers
// and names it separates values, because many clients encode every comma. Empty if malformed.
std::optional<std::vector<std::string>> ValuesOf(const FieldDescriptor& field,
                                                 std::string_view text) {
  std::string decoded_whole;
  if (field.is_repeated() && field.cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
    auto decoded = Decode(text);
    if (!decoded) return std::nullopt;
    decoded_whole = *std::move(decoded);
    text = decoded_whole;
  }
  std::vector<std::string> values;
  if (field.is_repeated() && text.empty()) return values;
  while (true) {
    const std::size_t comma = field.is_repeated() ? text.find(',') : std::string_view::npos;
    auto value = decoded_whole.empty() ? Decode(text.substr(0, comma))
                                       : std::optional<std::string>(text.substr(0, comma));
    if (!value) return std::nullopt;
    values.push_back(*std::move(value));
    if (comma == std::string_view::npos) return values;
    text.remove_prefix(comma + 1);
  }
}

std::string TextOf(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Status FillObject(const Json& object, Message& message, int depth);

Status FillValue(const Json& value, const FieldDescriptor& field, Message& message, int depth) {
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    if (field.is_map() || !value.is_object())
      return Wrong("parameter '" + field.name() + "': found " + value.type_name() +
                   "; expected an object");
    Message* const child = field.is_repeated()
                               ? message.GetReflection()->AddMessage(&message, &field)
                               : message.GetReflection()->MutableMessage(&message, &field);
    return FillObject(value, *child, depth + 1);
  }
  if (!value.is_primitive())
    return Wrong("parameter '" + field.name() + "': found " + value.type_name() +
                 "; expected one value");
  const bool text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  if (text && !value.is_string())
    return Wrong("parameter '" + field.name() + "': found " + value.type_name() +
                 "; expected a string");
  return Setter(message, field).Set(TextOf(value));
}

Status FillObject(const Json& object, Message& message, int depth) {
  if (depth > kDepthMax)
    return Wrong("read the request: nested deeper than " + std::to_string(kDepthMax));
  const Descriptor& type = *message.GetDescriptor();
  for (const auto& [name, value] : object.items()) {
    const FieldDescriptor* const field = type.FindFieldByName(name);
    if (field == nullptr) return Unknown(name, type);
    if (value.is_null()) continue;
    if (!field->is_repeated()) {
      STATCOLLECT_RETURN_IF_ERROR(FillValue(value, *field, message, depth));
      continue;
    }
    if (!value.is_array())
      return Wrong("parameter '" + field->name() + "': found " + value.type_name() +
                   "; expected a list");
    for (const Json& element : value)
      STATCOLLECT_RETURN_IF_ERROR(FillValue(element, *field, message, depth));
  }
  return Status::Ok();
}

}  // namespace

std::string KnownParameters(const Descriptor& type) {
  std::string known;
  for (int i = 0; i < type.field_count(); ++i)
    known += (known.empty() ? "" : ", ") + type.field(i)->name();
  return known.empty() ? "none" : known;
}

Status FillFromQuery(std::string_view query, Message& request) {
  const Descriptor& type = *request.GetDescriptor();
  std::set<const FieldDescriptor*> seen;
  std::size_t count = 0;
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    if (part.empty()) continue;
    const std::size_t equals = part.find('=');
    const auto name = Decode(part.substr(0, equals));
    if (!name) return Wrong("parameter '" + Printable(part) + "': malformed percent-encoding");
    const FieldDescriptor* const field = type.FindFieldByName(*name);
    if (field == nullptr) return Unknown(*name, type);
    if (!seen.insert(field).second && !field->is_repeated())
      return Wrong("parameter '" + field->name() + "' appears twice; expected once");
    const auto values =
        ValuesOf(*field, equals == std::string_view::npos ? "" : part.substr(equals + 1));
    if (!values) return Wrong("parameter '" + field->name() + "': malformed percent-encoding");
    count += values->size();
    if (count > kParametersMax)
      return Wrong("more than " + std::to_string(kParametersMax) + " values; expected fewer");
    for (const std::string& value : *values)
      STATCOLLECT_RETURN_IF_ERROR(Setter(request, *field).Set(value));
  }
  return Status::Ok();
}

Status FillFromJson(const std::string& body, Message& request) {
  if (body.empty()) return Status::Ok();
  const Json object = Json::parse(body, nullptr, false);
  if (object.is_discarded()) return Wrong("read the request: its body is not valid JSON");
  if (!object.is_object())
    return Wrong(std::string("read the request: found ") + object.type_name() +
                 "; expected an object with " + KnownParameters(*request.GetDescriptor()));
  return FillObject(object, request, 0);
}

}  // namespace statcollect::api
