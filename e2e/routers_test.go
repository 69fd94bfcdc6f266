package e2e

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/idemhttp"
)

func newGuard(t *testing.T, change ...func(*idemhttp.Config)) *idemhttp.Guard {
	t.Helper()
	cfg := idemhttp.Config{Operation: idem.Config{Name: "orders.create"}, Scope: idemhttp.Global}
	for _, f := range change {
		f(&cfg)
	}
	g, err := idemhttp.New(memory.New(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// routes are an endpoint POST /orders/{id} that answers 201 "order {id} {body}", and
// POST /fail that fails with 402 in the router's own way.
func testRouter(t *testing.T, h http.Handler, runs *int, failure string) {
	t.Helper()
	srv := httptest.NewServer(h)
	defer srv.Close()
	post := func(path, key, body string) (int, string, bool) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b), resp.Header.Get("Idempotent-Replayed") == "true"
	}
	for i := range 3 {
		if status, body, replayed := post("/orders/7", "k", "tea"); status != 201 || body != "order 7 tea" || replayed != (i > 0) {
			t.Errorf("request %d: %d %q, replayed %v", i, status, body, replayed)
		}
	}
	for i := range 3 {
		if status, body, replayed := post("/fail", "f", ""); status != 402 || !strings.Contains(body, failure) || replayed != (i > 0) {
			t.Errorf("request %d that fails: %d %q, replayed %v", i, status, body, replayed)
		}
	}
	if *runs != 2 {
		t.Errorf("handlers ran %d times, want 2", *runs)
	}
	if status, body, _ := post("/orders/7", "", "tea"); status != 400 || !strings.Contains(body, idemhttp.CodeKeyMissing) {
		t.Errorf("without a key: %d %q", status, body)
	}
}

func TestChi(t *testing.T) {
	guard, runs := newGuard(t), 0
	r := chi.NewRouter()
	r.With(guard.Handler).Post("/orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		runs++
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(201)
		io.WriteString(w, "order "+chi.URLParam(r, "id")+" "+string(body))
	})
	r.With(guard.Handler).Post("/fail", func(w http.ResponseWriter, r *http.Request) {
		runs++
		http.Error(w, "declined", http.StatusPaymentRequired)
	})
	testRouter(t, r, &runs, "declined")
}

// answerErrors makes an answer of a handler's error inside the guard.
func answerErrors(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := next(c); err != nil {
			c.Error(err)
		}
		return nil
	}
}

func TestEcho(t *testing.T) {
	guard, runs := newGuard(t), 0
	e := echo.New()
	e.POST("/orders/:id", func(c echo.Context) error {
		runs++
		body, err := io.ReadAll(c.Request().Body)
		if err != nil {
			return err
		}
		return c.String(201, "order "+c.Param("id")+" "+string(body))
	}, echo.WrapMiddleware(guard.Handler), answerErrors)
	e.POST("/fail", func(echo.Context) error {
		runs++
		return echo.NewHTTPError(402, "declined").SetInternal(errors.New("no credit"))
	}, echo.WrapMiddleware(guard.Handler), answerErrors)
	testRouter(t, e, &runs, "declined")
}

func TestGin(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	guard, runs := newGuard(t), 0
	guarded := gin.New()
	guarded.POST("/orders/:id", func(c *gin.Context) {
		runs++
		body, err := c.GetRawData()
		if err != nil {
			c.AbortWithError(500, err)
			return
		}
		c.String(201, "order %s %s", c.Param("id"), body)
	})
	engine := gin.New()
	engine.POST("/orders/:id", gin.WrapH(guard.Handler(guarded)))
	engine.POST("/fail", gin.WrapH(guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs++
		http.Error(w, "declined", http.StatusPaymentRequired)
	}))))
	testRouter(t, engine, &runs, "declined")
}
