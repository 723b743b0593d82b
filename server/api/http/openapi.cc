#include "server/api/http/openapi.h"

#include <set>
#include <string_view>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include "proto/descriptor_set.h"
#include "proto/json.h"

namespace statcollect::api {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::SourceLocation;
using OrderedJson = nlohmann::ordered_json;

// Lines joined, blanks trimmed.
std::string Sentence(std::string_view comment) {
  std::string text;
  bool blank = true;
  for (const char c : comment) {
    const bool space = c == ' ' || c == '\n' || c == '\t';
    if (space && blank) continue;
    text += space ? ' ' : c;
    blank = space;
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

// The build's protos with their comments; the generated descriptors have none.
class Comments {
 public:
  Comments() {
    google::protobuf::FileDescriptorSet files;
    const std::string_view bytes = DescriptorSetBytes();
    if (!files.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    for (const auto& file : files.file()) pool_.BuildFile(file);
  }
  std::string Of(const MethodDescriptor& method) const {
    return Text(pool_.FindMethodByName(method.full_name()));
  }
  std::string Of(const Descriptor& type) const {
    return Text(pool_.FindMessageTypeByName(type.full_name()));
  }
  std::string Of(const FieldDescriptor& field) const {
    return Text(pool_.FindFieldByName(field.full_name()));
  }
  std::string Of(const EnumDescriptor& type) const {
    const auto* found = pool_.FindEnumTypeByName(type.full_name());
    if (found == nullptr) return {};
    std::string text = Text(found);
    for (int i = 0; i < found->value_count(); ++i) {
      const std::string of_value = Text(found->value(i));
      if (of_value.empty()) continue;
      const int number = found->value(i)->number();
      text += (text.empty() ? "" : "; ") + (number == 0 ? "null" : EnumText(*found, number)) +
              ": " + of_value;
    }
    return text;
  }

 private:
  template <typename D>
  static std::string Text(const D* descriptor) {
    SourceLocation at;
    if (descriptor == nullptr || !descriptor->GetSourceLocation(&at)) return {};
    std::string text = Sentence(at.leading_comments);
    const std::string behind = Sentence(at.trailing_comments);
    if (!text.empty() && !behind.empty()) text += "; ";
    return text + behind;
  }
  DescriptorPool pool_;
};

// Drops the part of a call's comment that concerns gRPC only.
std::string WithoutGrpc(std::string comment) {
  const std::size_t at = comment.find("gRPC:");
  if (at != std::string::npos) comment.resize(at);
  while (comment.ends_with(' ')) comment.pop_back();
  return comment;
}

// Fields that the conversions require: the runs, and the activation of queries about one
// tensor.
bool IsRequired(const FieldDescriptor& field) {
  const std::string &name = field.name(), &request = field.containing_type()->name();
  if (name == "run_b") return request != "CompareConfigRequest";
  if (name == "activation")
    return request == "GetSeriesRequest" || request == "GetCurvesRequest" ||
           request == "ReadCaptureRequest";
  return name == "run" || name == "run_a" || name == "repeats";
}

OrderedJson Ref(const std::string& name) { return {{"$ref", "#/components/schemas/" + name}}; }

class Describer {
 public:
  OrderedJson Describe(const std::map<std::string, HttpRoute>& routes) {
    OrderedJson paths = OrderedJson::object();
    for (const auto& [name, route] : routes) paths[std::string(kHttpPrefix) + name] = Path(route);
    schemas_["Error"] = {
        {"type", "object"},
        {"properties",
         {{"error",
           {{"type", "string"},
            {"description", "What was found, what was expected, and what to do."}}},
          {"code", {{"type", "string"}, {"description", "The gRPC status, such as not_found."}}}}},
        {"required", {"error", "code"}}};
    OrderedJson described = {
        {"openapi", "3.1.0"},
        {"info",
         {{"title", "statcollect"},
          {"version", "1"},
          {"description", "All queries of statctl. Answers equal its output with --format json."}}},
        {"paths", std::move(paths)}};
    described["components"]["schemas"] = std::move(schemas_);
    return described;
  }

 private:
  OrderedJson Path(const HttpRoute& route) {
    const Descriptor& asked = *route.method->input_type();
    OrderedJson post = Operation(route, "post");
    post["requestBody"]["content"]["application/json"]["schema"] = Ref(Name(asked, true));
    OrderedJson path = OrderedJson::object();
    if (!route.changes) {
      OrderedJson get = Operation(route, "get");
      get["parameters"] = Parameters(asked);
      path["get"] = std::move(get);
    }
    path["post"] = std::move(post);
    return path;
  }

  OrderedJson Operation(const HttpRoute& route, const std::string& verb) {
    OrderedJson operation = {{"operationId", verb + route.method->name()},
                             {"tags", {route.method->service()->name()}}};
    if (const std::string comment = WithoutGrpc(comments_.Of(*route.method)); !comment.empty())
      operation["description"] = comment;
    operation["responses"]["200"] = Answer(route);
    for (const auto& [status, what] : std::map<std::string, std::string>{
             {"400", "A parameter is unknown or invalid."},
             {"404", "The run, activation, step or scalar does not exist."},
             {"429", "Too many queries are waiting, or the answer has too many rows."},
             {"499", "Cancelled."},
             {"503", "The collector is shutting down."},
             {"504", "The query took longer than the collector allows."},
             {"default", "Any other failure."}}) {
      OrderedJson failure = {{"description", what}};
      failure["content"]["application/json"]["schema"] = Ref("Error");
      operation["responses"][status] = std::move(failure);
    }
    return operation;
  }

  OrderedJson Answer(const HttpRoute& route) {
    using Kind = HttpRoute::Answer;
    if (route.answer == Kind::kBytes) {
      OrderedJson bytes = {{"description", "Bytes, laid out as docs/http.md says; with an ETag."}};
      bytes["content"]["application/octet-stream"]["schema"] = OrderedJson::object();
      return bytes;
    }
    const bool lines = route.answer == Kind::kLines, events = route.answer == Kind::kEvents;
    OrderedJson answer = {
        {"description", lines    ? "One line of JSON for each message."
                        : events ? "Server-sent events `runs`, whose data are such an object."
                                 : "The answer."}};
    answer["content"][lines    ? "application/x-ndjson"
                      : events ? "text/event-stream"
                               : "application/json"]["schema"] =
        Ref(Name(route.answer_type(), false));
    return answer;
  }

  OrderedJson Parameters(const Descriptor& type) {
    OrderedJson parameters = OrderedJson::array();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) continue;
      OrderedJson parameter = {
          {"name", field.name()}, {"in", "query"}, {"required", IsRequired(field)}};
      if (const std::string comment = comments_.Of(field); !comment.empty())
        parameter["description"] = comment;
      OrderedJson element = Element(field, true);
      if (field.is_repeated()) {
        parameter["style"] = "form";
        parameter["explode"] = false;
        parameter["schema"] = {{"type", "array"}, {"items", std::move(element)}};
      } else {
        parameter["schema"] = std::move(element);
      }
      parameters.push_back(std::move(parameter));
    }
    return parameters;
  }

  // The name of the type's schema, which is made if it is not there. Requests and answers differ:
  // an answer has every field, a request those that are required and any of the others.
  std::string Name(const Descriptor& type, bool request) {
    const std::string& name = type.name();
    if (!made_.insert(name).second) return name;
    OrderedJson properties = OrderedJson::object(), required = OrderedJson::array();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      properties[field.name()] = Property(field, request);
      if (!request || IsRequired(field)) required.push_back(field.name());
    }
    OrderedJson schema = {{"type", "object"}};
    if (const std::string comment = comments_.Of(type); !comment.empty())
      schema["description"] = comment;
    schema["properties"] = std::move(properties);
    if (!required.empty()) schema["required"] = std::move(required);
    schema["additionalProperties"] = false;
    schemas_[name] = std::move(schema);
    return name;
  }

  OrderedJson Property(const FieldDescriptor& field, bool request) {
    OrderedJson property;
    if (field.is_map()) {
      property = {{"type", "object"},
                  {"additionalProperties", Element(*field.message_type()->map_value(), request)}};
    } else if (field.is_repeated()) {
      property = {{"type", "array"}, {"items", Element(field, request)}};
    } else {
      property = Element(field, request);
      if (field.has_presence() || (request && !IsRequired(field)))
        property = {{"anyOf", {std::move(property), {{"type", "null"}}}}};
    }
    if (const std::string comment = comments_.Of(field); !comment.empty())
      property["description"] = comment;
    return property;
  }

  OrderedJson Element(const FieldDescriptor& field, bool request) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
      case FieldDescriptor::CPPTYPE_INT64:
        return {{"type", "integer"}};
      case FieldDescriptor::CPPTYPE_UINT64:
        if (field.type() == FieldDescriptor::TYPE_FIXED64)
          return {{"type", "string"}, {"pattern", "^0x[0-9a-f]{16}$"}};
        [[fallthrough]];
      case FieldDescriptor::CPPTYPE_UINT32:
        return {{"type", "integer"}, {"minimum", 0}};
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_FLOAT:
        if (request) return {{"type", "number"}};
        return {{"anyOf", {{{"type", "number"}}, {{"enum", {"NaN", "Infinity", "-Infinity"}}}}}};
      case FieldDescriptor::CPPTYPE_BOOL:
        return {{"type", "boolean"}};
      case FieldDescriptor::CPPTYPE_ENUM:
        return Enumeration(*field.enum_type(), request);
      case FieldDescriptor::CPPTYPE_STRING:
        if (field.type() == FieldDescriptor::TYPE_BYTES)
          return {{"type", "string"}, {"pattern", "^([0-9a-f]{2})*$"}};
        return {{"type", "string"}};
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Ref(Name(*field.message_type(), request));
    }
    return OrderedJson::object();
  }

  OrderedJson Enumeration(const EnumDescriptor& type, bool request) {
    OrderedJson texts = OrderedJson::array();
    for (int i = 0; i < type.value_count(); ++i) {
      if (type.value(i)->number() != 0) texts.push_back(EnumText(type, type.value(i)->number()));
    }
    if (!request) texts.push_back(nullptr);
    OrderedJson schema = {{"enum", std::move(texts)}};
    if (const std::string comment = comments_.Of(type); !comment.empty())
      schema["description"] = comment;
    return schema;
  }

  const Comments comments_;
  OrderedJson schemas_ = OrderedJson::object();
  std::set<std::string> made_;
};

}  // namespace

nlohmann::ordered_json MakeOpenApi(const std::map<std::string, HttpRoute>& routes) {
  return Describer().Describe(routes);
}

}  // namespace statcollect::api
