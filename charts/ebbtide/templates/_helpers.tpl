{{- define "ebbtide.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "ebbtide.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "ebbtide.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "ebbtide.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* For what is cluster-scoped: two releases of one name live in two namespaces. */}}
{{- define "ebbtide.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "ebbtide.fullname" .) }}
{{- end }}

{{- define "ebbtide.selector" -}}
app.kubernetes.io/name: {{ include "ebbtide.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ebbtide.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "ebbtide.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "ebbtide.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- define "ebbtide.operatorAccount" -}}
{{- printf "%s-operator" (include "ebbtide.fullname" .) }}
{{- end }}

{{- define "ebbtide.engineAccount" -}}
{{- if .Values.engine.serviceAccount }}
{{- .Values.engine.serviceAccount }}
{{- else if .Values.clusterWide }}
{{- "default" }}
{{- else }}
{{- printf "%s-engine" (include "ebbtide.fullname" .) }}
{{- end }}
{{- end }}

{{- define "ebbtide.gateway" -}}
{{- printf "%s-gateway" (include "ebbtide.fullname" .) }}
{{- end }}

{{- define "ebbtide.tlsSecret" -}}
{{- .Values.gateway.tls.existingSecret | default (printf "%s-tls" (include "ebbtide.gateway" .)) }}
{{- end }}

{{- define "ebbtide.gatewayUrl" -}}
{{- $port := int .Values.gateway.service.port }}
{{- printf "https://%s.%s.svc%s" (include "ebbtide.gateway" .) .Release.Namespace (ternary "" (printf ":%d" $port) (eq $port 443)) }}
{{- end }}

{{- /* The namespaces with servers, as JSON: {"all": [...]}. */}}
{{- define "ebbtide.namespaces" -}}
{{- if and .Values.clusterWide .Values.watchNamespaces }}
{{- fail "watchNamespaces is for clusterWide: false; clusterWide: true sees all namespaces" }}
{{- end }}
{{- dict "all" (.Values.watchNamespaces | default (list .Release.Namespace) | uniq) | toJson }}
{{- end }}

{{- define "ebbtide.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.runAsUser }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
fsGroup: {{ int64 . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "ebbtide.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "ebbtide.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
