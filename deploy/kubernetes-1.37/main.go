// Command check reads objects of Kubernetes as YAML, and prints what a strict API server says against each.
// They go through the API server's own decoding, defaults and validation, and pods through Pod Security's level
// "restricted". Nothing is asked of a cluster. Exit code 1: something was said.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	networkvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
	security "k8s.io/pod-security-admission/api"
	levels "k8s.io/pod-security-admission/policy"
)

var serializer = json.NewSerializerWithOptions(json.DefaultMetaFactory, legacyscheme.Scheme, legacyscheme.Scheme,
	json.SerializerOptions{Yaml: true, Strict: true})

func main() {
	decoder := legacyscheme.Codecs.DecoderToVersion(serializer, runtime.InternalGroupVersioner)
	documents := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	count, said := 0, 0
	for {
		document, err := documents.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			panic(err)
		}
		count++
		for _, problem := range problems(decoder, document) {
			said++
			fmt.Printf("%d: %s\n", count, problem)
		}
	}
	if said > 0 || count == 0 {
		os.Exit(1)
	}
}

func problems(decoder runtime.Decoder, document []byte) []string {
	object, _, err := decoder.Decode(document, nil, nil)
	if err != nil {
		return []string{err.Error()}
	}
	var errors field.ErrorList
	var found []string
	switch o := object.(type) {
	case *core.Namespace:
		errors = corevalidation.ValidateNamespace(o)
	case *core.ServiceAccount:
		errors = corevalidation.ValidateServiceAccount(o)
	case *core.Service:
		// The server fills this in before it validates.
		o.Spec.ClusterIPs = []string{o.Spec.ClusterIP}
		errors = corevalidation.ValidateServiceCreate(o)
	case *core.ConfigMap:
		errors = corevalidation.ValidateConfigMap(o)
	case *networking.NetworkPolicy:
		errors = networkvalidation.ValidateNetworkPolicy(o, networkvalidation.NetworkPolicyValidationOptions{})
	case *policy.PodDisruptionBudget:
		options := policyvalidation.PodDisruptionBudgetValidationOptions{}
		errors = policyvalidation.ValidatePodDisruptionBudget(o, options)
	case *apps.StatefulSet:
		errors = appsvalidation.ValidateStatefulSet(o, appsvalidation.StatefulSetValidationOptions{},
			corevalidation.PodValidationOptions{})
		found = insecure(document)
	default:
		return []string{fmt.Sprintf("%T: not known here", o)}
	}
	for _, each := range errors {
		found = append(found, each.Error())
	}
	return found
}

// insecure says what Pod Security's level "restricted" has against a StatefulSet's pods.
func insecure(document []byte) []string {
	object, _, err := serializer.Decode(document, nil, nil)
	if err != nil {
		panic(err)
	}
	evaluator, err := levels.NewEvaluator(levels.DefaultChecks(), nil)
	if err != nil {
		panic(err)
	}
	template := object.(*appsv1.StatefulSet).Spec.Template
	level := security.LevelVersion{Level: security.LevelRestricted, Version: security.LatestVersion()}
	var found []string
	for _, each := range evaluator.EvaluatePod(level, &template.ObjectMeta, &template.Spec) {
		if !each.Allowed {
			found = append(found, each.ForbiddenReason+": "+each.ForbiddenDetail)
		}
	}
	return found
}
